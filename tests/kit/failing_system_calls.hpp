// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/event_driver.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <sys/epoll.h>

#include <initializer_list>
#include <limits>

#include "kit/standard.hpp"

namespace weft::test {

/// System calls, and what the ring of an io_uring does in place of some, in the order of io_kind.
// clang-format off
enum class system_call : std::uint8_t {
  socket, setsockopt, getsockopt, bind, listen, accept4, connect, getsockname, sendmsg, recvmsg, close, getaddrinfo,
  epoll_create1, epoll_ctl, epoll_pwait2, epoll_wait, poll, eventfd, open, preadv, pwritev, fdatasync, memfd_create,
  ftruncate, fallocate, fcntl, lseek, fstat, lstat, mmap, mmap_file, madvise, getrandom, permit_io_uring,
  accept_in_ring, receive_in_ring, wait_in_ring, connect_in_ring, send_in_ring, read_in_ring, write_in_ring, sync_in_ring
};
// clang-format on

/// A set of them: system_call::bind | system_call::listen.
class system_call_set {
 public:
  constexpr system_call_set(system_call one) noexcept : bits_(std::uint64_t{1} << static_cast<unsigned>(one)) {}
  [[nodiscard]] static constexpr system_call_set all() noexcept {
    return system_call_set(std::numeric_limits<std::uint64_t>::max());
  }
  [[nodiscard]] constexpr bool contains(system_call one) const noexcept {
    return (bits_ >> static_cast<unsigned>(one) & 1) != 0;
  }
  friend constexpr system_call_set operator|(system_call_set a, system_call_set b) noexcept {
    return system_call_set(a.bits_ | b.bits_);
  }

 private:
  constexpr explicit system_call_set(std::uint64_t bits) noexcept : bits_(bits) {}
  std::uint64_t bits_;
};
constexpr system_call_set operator|(system_call a, system_call b) noexcept {
  return system_call_set(a) | system_call_set(b);
}

/// Calls that fail: those of a kind that come after the first so many, so many of them.
struct failing {
  system_call_set of;
  int number = 0;  ///< an errno
  std::size_t after = 0;
  std::size_t times = std::numeric_limits<std::size_t>::max();
  std::thread::id on{};  ///< the thread that makes them; by default any
  std::size_t made = 0;  ///< how many calls of these kinds there were, whether or not they failed
};

/// The kernel, but for calls that fail as a table says. From any thread.
class failing_system_calls : public system_calls {
 public:
  failing_system_calls() = default;
  failing_system_calls(std::initializer_list<failing> table) : table_(table) {}

  /// In place of what failed before; empty: nothing fails.
  void fail(std::initializer_list<failing> table) {
    const std::lock_guard lock(mutex_);
    table_ = table;
  }
  /// How many calls of the kinds in this row there were.
  [[nodiscard]] std::size_t made(std::size_t row = 0) const {
    const std::lock_guard lock(mutex_);
    return table_.at(row).made;
  }
  [[nodiscard]] bool has_failed() const {
    const std::lock_guard lock(mutex_);
    return std::any_of(table_.begin(), table_.end(), [](const failing& each) { return each.made > each.after; });
  }

#define WEFT_TEST_CALL(type, name, parameters, arguments)        \
  type name parameters noexcept override {                       \
    const int why = failure_of(system_call::name);               \
    return why != 0 ? type{-why} : system_calls::name arguments; \
  }
  WEFT_TEST_CALL(int, socket, (int domain, int type, int protocol), (domain, type, protocol))
  WEFT_TEST_CALL(int, setsockopt, (int fd, int level, int name, const void* value, unsigned length),
                 (fd, level, name, value, length))
  WEFT_TEST_CALL(int, getsockopt, (int fd, int level, int name, void* value, unsigned* length),
                 (fd, level, name, value, length))
  WEFT_TEST_CALL(int, bind, (int fd, const sockaddr* address, unsigned length), (fd, address, length))
  WEFT_TEST_CALL(int, listen, (int fd, int backlog), (fd, backlog))
  WEFT_TEST_CALL(int, accept4, (int fd, sockaddr* address, unsigned* length, int flags), (fd, address, length, flags))
  WEFT_TEST_CALL(int, connect, (int fd, const sockaddr* address, unsigned length), (fd, address, length))
  WEFT_TEST_CALL(int, getsockname, (int fd, sockaddr* address, unsigned* length), (fd, address, length))
  WEFT_TEST_CALL(ssize_t, sendmsg, (int fd, const msghdr* message, int flags), (fd, message, flags))
  WEFT_TEST_CALL(ssize_t, recvmsg, (int fd, msghdr* message, int flags), (fd, message, flags))
  WEFT_TEST_CALL(int, getaddrinfo, (const char* host, const char* service, const addrinfo* hints, addrinfo** found),
                 (host, service, hints, found))
  WEFT_TEST_CALL(int, epoll_create1, (int flags), (flags))
  WEFT_TEST_CALL(int, epoll_pwait2, (int epoll, epoll_event* events, int count, const timespec* timeout),
                 (epoll, events, count, timeout))
  WEFT_TEST_CALL(int, epoll_wait, (int epoll, epoll_event* events, int count, int timeout_ms),
                 (epoll, events, count, timeout_ms))
  WEFT_TEST_CALL(int, poll, (pollfd * descriptors, unsigned count, int timeout_ms), (descriptors, count, timeout_ms))
  WEFT_TEST_CALL(int, eventfd, (unsigned initial, int flags), (initial, flags))
  WEFT_TEST_CALL(int, open, (const char* path, int flags, mode_t mode), (path, flags, mode))
  WEFT_TEST_CALL(ssize_t, preadv, (int fd, const iovec* pieces, int count, std::uint64_t offset),
                 (fd, pieces, count, offset))
  WEFT_TEST_CALL(ssize_t, pwritev, (int fd, const iovec* pieces, int count, std::uint64_t offset),
                 (fd, pieces, count, offset))
  WEFT_TEST_CALL(int, fdatasync, (int fd), (fd))
  WEFT_TEST_CALL(int, memfd_create, (const char* name, unsigned flags), (name, flags))
  WEFT_TEST_CALL(int, ftruncate, (int fd, off_t length), (fd, length))
  WEFT_TEST_CALL(int, fallocate, (int fd, int mode, off_t offset, off_t length), (fd, mode, offset, length))
  WEFT_TEST_CALL(int, fcntl, (int fd, int command, int argument), (fd, command, argument))
  WEFT_TEST_CALL(off_t, lseek, (int fd, off_t offset, int from), (fd, offset, from))
  WEFT_TEST_CALL(int, fstat, (int fd, struct stat* found), (fd, found))
  WEFT_TEST_CALL(int, lstat, (const char* path, struct stat* found), (path, found))
  WEFT_TEST_CALL(int, madvise, (void* address, std::size_t length, int advice), (address, length, advice))
  WEFT_TEST_CALL(ssize_t, getrandom, (void* buffer, std::size_t length, unsigned flags), (buffer, length, flags))
#undef WEFT_TEST_CALL
  // close(2) lets go of the descriptor even where it fails.
  int close(int fd) noexcept override {
    const int made = system_calls::close(fd);
    const int why = failure_of(system_call::close);
    return why != 0 ? -why : made;
  }
  // To remove a descriptor that is there cannot fail.
  int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept override {
    const int why = operation == EPOLL_CTL_DEL ? 0 : failure_of(system_call::epoll_ctl);
    return why != 0 ? -why : system_calls::epoll_ctl(epoll, operation, fd, event);
  }
  void* mmap(std::size_t length, int protection, int flags, int* failure) noexcept override {
    const int why = failure_of(system_call::mmap);
    if (why == 0) return system_calls::mmap(length, protection, flags, failure);
    *failure = why;
    return nullptr;
  }
  void* mmap_file(std::size_t length, int protection, int flags, int fd, off_t offset, int* failure) noexcept override {
    const int why = failure_of(system_call::mmap_file);
    if (why == 0) return system_calls::mmap_file(length, protection, flags, fd, offset, failure);
    *failure = why;
    return nullptr;
  }
  int permit_io_uring() noexcept override { return -failure_of(system_call::permit_io_uring); }
  int permit_ring_operation(std::uint8_t kind) noexcept override {
    return -failure_of(static_cast<system_call>(static_cast<unsigned>(system_call::accept_in_ring) + kind));
  }

 private:
  // Counts it in each row that it belongs to. 0: it does not fail.
  int failure_of(system_call which) noexcept {
    const std::lock_guard lock(mutex_);
    int why = 0;
    for (failing& each : table_) {
      if (!each.of.contains(which)) continue;
      if (each.on != std::thread::id() && each.on != std::this_thread::get_id()) continue;
      const std::size_t before = each.made++;
      if (why == 0 && before >= each.after && before - each.after < each.times) why = each.number;
    }
    return why;
  }

  mutable std::mutex mutex_;
  std::vector<failing> table_;
};

}  // namespace weft::test
