// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/io/system_calls.hpp>

#include <sys/socket.h>

#include <cerrno>

namespace weft {

/// recvmsg(2) and sendmsg(2) for drivers, which make them for each message: where they are the kernel's own, without a
/// virtual call, and as recv(2) and send(2) where there is one piece of memory and nothing else, because the kernel
/// then has no message header and no vector to copy and check.
class socket_calls {
 public:
  explicit socket_calls(system_calls& calls) noexcept : calls_(calls), direct_(&calls == &system_calls::kernel()) {}

  /// Whether nobody has put anything of theirs between this and the kernel.
  [[nodiscard]] bool are_direct() const noexcept { return direct_; }

  ssize_t receive(int fd, msghdr& message, int flags) const noexcept {
    if (!direct_) return calls_.recvmsg(fd, &message, flags);
    const ssize_t result = is_plain(message) ? ::recv(fd, message.msg_iov->iov_base, message.msg_iov->iov_len, flags)
                                             : ::recvmsg(fd, &message, flags);
    return result < 0 ? -errno : result;
  }
  ssize_t send(int fd, const msghdr& message, int flags) const noexcept {
    if (!direct_) return calls_.sendmsg(fd, &message, flags);
    const ssize_t result = is_plain(message) ? ::send(fd, message.msg_iov->iov_base, message.msg_iov->iov_len, flags)
                                             : ::sendmsg(fd, &message, flags);
    return result < 0 ? -errno : result;
  }

 private:
  [[nodiscard]] static bool is_plain(const msghdr& message) noexcept {
    return message.msg_iovlen == 1 && message.msg_control == nullptr && message.msg_name == nullptr;
  }

  system_calls& calls_;
  bool direct_;
};

}  // namespace weft
