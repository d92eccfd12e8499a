// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/kernel_call.hpp>
#include <weft/runtime/system/sanitized.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cstddef>
#include <span>

namespace weft {

/// Whether the calls are made by number. The C library's functions are cancellation points, which costs two locked
/// instructions each in a process of several threads. A sanitizer needs them all the same: it intercepts them to learn
/// what memory the kernel writes.
inline constexpr bool calls_by_number = !detail::is_sanitized;

/// recvmsg(2), sendmsg(2) and epoll_wait(2) for drivers, which make them for each message. On the real kernel there is
/// no virtual call, and a message of one piece of memory and nothing else becomes recv(2) or send(2), so the kernel has
/// no message header and no vector to copy and check.
class socket_calls {
 public:
  explicit socket_calls(system_calls& calls) noexcept : calls_(calls), direct_(&calls == &system_calls::kernel()) {}

  ssize_t receive(int fd, msghdr& message, int flags) const noexcept {
    if (!direct_) return calls_.recvmsg(fd, &message, flags);
    return is_plain(message) ? receive_plain(fd, *message.msg_iov, flags) : receive_message(fd, message, flags);
  }
  ssize_t send(int fd, const msghdr& message, int flags) const noexcept {
    if (!direct_) return calls_.sendmsg(fd, &message, flags);
    return is_plain(message) ? send_plain(fd, *message.msg_iov, flags) : send_message(fd, message, flags);
  }
  int wait(int epoll, std::span<epoll_event> events, int milliseconds) const noexcept {
    const int capacity = static_cast<int>(events.size());
    if (!direct_) return calls_.epoll_wait(epoll, events.data(), capacity, milliseconds);
    if (!calls_by_number) return or_errno(::epoll_wait(epoll, events.data(), capacity, milliseconds));
    // Newer architectures have no SYS_epoll_wait.
    return static_cast<int>(
        kernel_call(SYS_epoll_pwait, epoll, events.data(), capacity, milliseconds, nullptr, std::size_t{0}));
  }

 private:
  [[nodiscard]] static bool is_plain(const msghdr& message) noexcept {
    return message.msg_iovlen == 1 && message.msg_control == nullptr && message.msg_name == nullptr;
  }
  [[nodiscard]] static ssize_t receive_plain(int fd, const iovec& piece, int flags) noexcept {
    if (!calls_by_number) return or_errno(::recv(fd, piece.iov_base, piece.iov_len, flags));
    return kernel_call(SYS_recvfrom, fd, piece.iov_base, piece.iov_len, flags, nullptr, nullptr);
  }
  [[nodiscard]] static ssize_t receive_message(int fd, msghdr& message, int flags) noexcept {
    return calls_by_number ? kernel_call(SYS_recvmsg, fd, &message, flags) : or_errno(::recvmsg(fd, &message, flags));
  }
  [[nodiscard]] static ssize_t send_plain(int fd, const iovec& piece, int flags) noexcept {
    if (!calls_by_number) return or_errno(::send(fd, piece.iov_base, piece.iov_len, flags));
    return kernel_call(SYS_sendto, fd, piece.iov_base, piece.iov_len, flags, nullptr, socklen_t{0});
  }
  [[nodiscard]] static ssize_t send_message(int fd, const msghdr& message, int flags) noexcept {
    return calls_by_number ? kernel_call(SYS_sendmsg, fd, &message, flags) : or_errno(::sendmsg(fd, &message, flags));
  }

  system_calls& calls_;
  bool direct_;
};

}  // namespace weft
