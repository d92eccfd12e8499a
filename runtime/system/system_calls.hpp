// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <ctime>

// Declared here, so that programs that use weft do not include their headers.
struct addrinfo;
struct epoll_event;
struct iovec;
struct msghdr;
struct pollfd;
struct sockaddr;
struct stat;
struct statfs;

namespace weft {

/// The system calls of the runtime and of the layers above it: one seam, through which a test injects failures.
///
/// Each is the call of its name in section 2 of the manual, but returns -errno instead of setting errno, unless its
/// comment says otherwise. The `unsigned` lengths of addresses and options are of type socklen_t. Implementations must
/// be thread-safe.
class system_calls {
 public:
  virtual ~system_calls() = default;

  /// The system call of this name.
  /// @{
  virtual int socket(int domain, int type, int protocol) noexcept;
  virtual int setsockopt(int fd, int level, int name, const void* value, unsigned length) noexcept;
  virtual int getsockopt(int fd, int level, int name, void* value, unsigned* length) noexcept;
  virtual int bind(int fd, const sockaddr* address, unsigned length) noexcept;
  virtual int listen(int fd, int backlog) noexcept;
  virtual int accept4(int fd, sockaddr* address, unsigned* length, int flags) noexcept;
  virtual int connect(int fd, const sockaddr* address, unsigned length) noexcept;
  virtual int getsockname(int fd, sockaddr* address, unsigned* length) noexcept;
  virtual int getpeername(int fd, sockaddr* address, unsigned* length) noexcept;
  virtual ssize_t sendmsg(int fd, const msghdr* message, int flags) noexcept;
  virtual ssize_t recvmsg(int fd, msghdr* message, int flags) noexcept;
  virtual int shutdown(int fd, int how) noexcept;
  virtual int close(int fd) noexcept;
  /// @}

  /// getaddrinfo(3), with its own results: 0, or one of EAI_*; EAI_SYSTEM leaves an errno. freeaddrinfo(3) frees the
  /// addresses found.
  virtual int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) noexcept;

  /// The system call of this name.
  /// @{
  virtual int epoll_create1(int flags) noexcept;
  virtual int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept;
  virtual int epoll_pwait2(int epoll, epoll_event* events, int count, const timespec* timeout) noexcept;
  virtual int epoll_wait(int epoll, epoll_event* events, int count, int timeout_ms) noexcept;
  virtual int poll(pollfd* descriptors, unsigned count, int timeout_ms) noexcept;
  virtual int eventfd(unsigned initial, int flags) noexcept;

  virtual int open(const char* path, int flags, mode_t mode) noexcept;
  virtual ssize_t preadv(int fd, const iovec* pieces, int count, std::uint64_t offset) noexcept;
  virtual ssize_t pwritev(int fd, const iovec* pieces, int count, std::uint64_t offset) noexcept;
  virtual int fdatasync(int fd) noexcept;
  virtual off_t lseek(int fd, off_t offset, int from) noexcept;
  virtual int memfd_create(const char* name, unsigned flags) noexcept;
  virtual int ftruncate(int fd, off_t length) noexcept;
  virtual int fallocate(int fd, int mode, off_t offset, off_t length) noexcept;
  virtual int fcntl(int fd, int command, int argument) noexcept;
  virtual int fstat(int fd, struct stat* found) noexcept;
  virtual int fstatfs(int fd, struct statfs* found) noexcept;
  virtual int lstat(const char* path, struct stat* found) noexcept;
  virtual int unlink(const char* path) noexcept;
  virtual int flock(int fd, int operation) noexcept;
  virtual int kill(pid_t process, int signal) noexcept;
  virtual ssize_t process_vm_readv(pid_t process, const iovec* local, std::size_t local_count, const iovec* remote,
                                   std::size_t remote_count) noexcept;
  /// @}

  /// mmap(2) of anonymous memory. A failure is null, with an errno in `failure`, instead of MAP_FAILED.
  virtual void* mmap(std::size_t length, int protection, int flags, int* failure) noexcept;
  /// mmap(2) of a file, with failures like those of mmap().
  virtual void* mmap_file(std::size_t length, int protection, int flags, int fd, off_t offset, int* failure) noexcept;
  /// The system call of this name.
  /// @{
  virtual int munmap(void* address, std::size_t length) noexcept;
  virtual int madvise(void* address, std::size_t length, int advice) noexcept;
  virtual int mbind(void* address, std::size_t length, int mode, const unsigned long* nodes, unsigned long bits,
                    unsigned flags) noexcept;

  virtual ssize_t getrandom(void* buffer, std::size_t length, unsigned flags) noexcept;
  /// @}

  /// Called before a ring is set up; a negative errno forbids it.
  virtual int permit_io_uring() noexcept;
  /// Called for each operation that goes through the ring instead of a call above, with the number of its io_kind; a
  /// negative errno fails it.
  virtual int permit_ring_operation(std::uint8_t kind) noexcept;

  /// The kernel itself.
  [[nodiscard]] static system_calls& kernel() noexcept;
};

}  // namespace weft
