// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/system/kernel_call.hpp>
#include <weft/runtime/system/sanitized.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace weft {
namespace {

constinit system_calls instance;

}  // namespace

system_calls& system_calls::kernel() noexcept { return instance; }

int system_calls::socket(int domain, int type, int protocol) noexcept {
  return or_errno(::socket(domain, type, protocol));
}
int system_calls::setsockopt(int fd, int level, int name, const void* value, socklen_t length) noexcept {
  return or_errno(::setsockopt(fd, level, name, value, length));
}
int system_calls::getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept {
  return or_errno(::getsockopt(fd, level, name, value, length));
}
int system_calls::bind(int fd, const sockaddr* address, socklen_t length) noexcept {
  return or_errno(::bind(fd, address, length));
}
int system_calls::listen(int fd, int backlog) noexcept { return or_errno(::listen(fd, backlog)); }
int system_calls::accept4(int fd, sockaddr* address, socklen_t* length, int flags) noexcept {
  return or_errno(::accept4(fd, address, length, flags));
}
int system_calls::connect(int fd, const sockaddr* address, socklen_t length) noexcept {
  return or_errno(::connect(fd, address, length));
}
int system_calls::getsockname(int fd, sockaddr* address, socklen_t* length) noexcept {
  return or_errno(::getsockname(fd, address, length));
}
int system_calls::getpeername(int fd, sockaddr* address, socklen_t* length) noexcept {
  return or_errno(::getpeername(fd, address, length));
}
ssize_t system_calls::sendmsg(int fd, const msghdr* message, int flags) noexcept {
  return or_errno(::sendmsg(fd, message, flags));
}
ssize_t system_calls::recvmsg(int fd, msghdr* message, int flags) noexcept {
  return or_errno(::recvmsg(fd, message, flags));
}
int system_calls::shutdown(int fd, int how) noexcept { return or_errno(::shutdown(fd, how)); }
int system_calls::close(int fd) noexcept { return or_errno(::close(fd)); }

int system_calls::getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) noexcept {
  return ::getaddrinfo(host, service, hints, found);
}
int system_calls::epoll_create1(int flags) noexcept { return or_errno(::epoll_create1(flags)); }
int system_calls::epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  return or_errno(::epoll_ctl(epoll, operation, fd, event));
}
int system_calls::epoll_pwait2(int epoll, epoll_event* events, int count, const timespec* timeout) noexcept {
  // In a child of a process with threads, clang's thread sanitizer makes this call twice, and loses what the first
  // found.
  if (detail::is_thread_sanitized) return -ENOSYS;
  return or_errno(::epoll_pwait2(epoll, events, count, timeout, nullptr));
}
int system_calls::epoll_wait(int epoll, epoll_event* events, int count, int timeout_ms) noexcept {
  return or_errno(::epoll_wait(epoll, events, count, timeout_ms));
}
int system_calls::poll(pollfd* descriptors, unsigned count, int timeout_ms) noexcept {
  return or_errno(::poll(descriptors, count, timeout_ms));
}
int system_calls::eventfd(unsigned initial, int flags) noexcept { return or_errno(::eventfd(initial, flags)); }

int system_calls::open(const char* path, int flags, mode_t mode) noexcept {
  return or_errno(::open(path, flags, mode));
}
ssize_t system_calls::preadv(int fd, const iovec* pieces, int count, std::uint64_t offset) noexcept {
  return or_errno(::preadv(fd, pieces, count, static_cast<off_t>(offset)));
}
ssize_t system_calls::pwritev(int fd, const iovec* pieces, int count, std::uint64_t offset) noexcept {
  return or_errno(::pwritev(fd, pieces, count, static_cast<off_t>(offset)));
}
int system_calls::fdatasync(int fd) noexcept { return or_errno(::fdatasync(fd)); }
off_t system_calls::lseek(int fd, off_t offset, int from) noexcept { return or_errno(::lseek(fd, offset, from)); }
int system_calls::memfd_create(const char* name, unsigned flags) noexcept {
  return or_errno(::memfd_create(name, flags));
}
int system_calls::ftruncate(int fd, off_t length) noexcept { return or_errno(::ftruncate(fd, length)); }
int system_calls::fallocate(int fd, int mode, off_t offset, off_t length) noexcept {
  return or_errno(::fallocate(fd, mode, offset, length));
}
int system_calls::fcntl(int fd, int command, int argument) noexcept { return or_errno(::fcntl(fd, command, argument)); }
int system_calls::fstat(int fd, struct stat* found) noexcept { return or_errno(::fstat(fd, found)); }
int system_calls::fstatfs(int fd, struct statfs* found) noexcept { return or_errno(::fstatfs(fd, found)); }
int system_calls::lstat(const char* path, struct stat* found) noexcept { return or_errno(::lstat(path, found)); }
int system_calls::unlink(const char* path) noexcept { return or_errno(::unlink(path)); }
int system_calls::flock(int fd, int operation) noexcept { return or_errno(::flock(fd, operation)); }
int system_calls::kill(pid_t process, int signal) noexcept { return or_errno(::kill(process, signal)); }
ssize_t system_calls::process_vm_readv(pid_t process, const iovec* local, std::size_t local_count, const iovec* remote,
                                       std::size_t remote_count) noexcept {
  return or_errno(::process_vm_readv(process, local, local_count, remote, remote_count, 0));
}

void* system_calls::mmap(std::size_t length, int protection, int flags, int* failure) noexcept {
  return system_calls::mmap_file(length, protection, flags, -1, 0, failure);  // not what a derived class makes of it
}
void* system_calls::mmap_file(std::size_t length, int protection, int flags, int fd, off_t offset,
                              int* failure) noexcept {
  void* const address = ::mmap(nullptr, length, protection, flags, fd, offset);
  if (address != MAP_FAILED) return address;
  *failure = errno;
  return nullptr;
}
int system_calls::munmap(void* address, std::size_t length) noexcept { return or_errno(::munmap(address, length)); }
// The C library has no function for this call.
int system_calls::mbind(void* address, std::size_t length, int mode, const unsigned long* nodes, unsigned long bits,
                        unsigned flags) noexcept {
  return or_errno(static_cast<int>(::syscall(SYS_mbind, address, length, mode, nodes, bits, flags)));
}
int system_calls::madvise(void* address, std::size_t length, int advice) noexcept {
  return or_errno(::madvise(address, length, advice));
}

ssize_t system_calls::getrandom(void* buffer, std::size_t length, unsigned flags) noexcept {
  return or_errno(::getrandom(buffer, length, flags));
}

int system_calls::permit_io_uring() noexcept { return 0; }
int system_calls::permit_ring_operation(std::uint8_t) noexcept { return 0; }

}  // namespace weft
