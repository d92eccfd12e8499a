// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/packets.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

namespace weft::net::shm {
namespace {

constexpr std::size_t control_bytes = CMSG_SPACE(most_descriptors * sizeof(int));

// Takes the descriptors of all control messages, so that none is left open unnoticed.
void take_descriptors(const msghdr& message, system_calls& calls, packet& got, std::span<descriptor> files) noexcept {
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(const_cast<msghdr*>(&message), each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(each) + i * sizeof fd, sizeof fd);
      descriptor taken(fd, calls);
      if (got.descriptors < files.size()) files[got.descriptors] = std::move(taken);
      ++got.descriptors;
    }
  }
  got.lost_descriptors = (message.msg_flags & MSG_CTRUNC) != 0;
}

}  // namespace

int send_packet(const descriptor& socket, std::span<const std::byte> bytes, std::span<const int> descriptors) noexcept {
  assert(descriptors.size() <= most_descriptors);
  alignas(cmsghdr) std::array<std::byte, control_bytes> control{};
  iovec memory{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr& header = *CMSG_FIRSTHDR(&message);
    header.cmsg_level = SOL_SOCKET;
    header.cmsg_type = SCM_RIGHTS;
    header.cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(&header), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t result = -EINTR;
  while (result == -EINTR) result = socket.calls().sendmsg(socket.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  return result < 0 ? static_cast<int>(result) : 0;
}

int send_wake_up(const descriptor& socket, std::span<const int> file) noexcept {
  constexpr std::byte nothing{};
  return send_packet(socket, {&nothing, 1}, file);
}

packet take_packet(const descriptor& socket, std::span<std::byte> room, std::span<descriptor> files) noexcept {
  packet got;
  alignas(cmsghdr) std::array<std::byte, control_bytes> control;
  iovec memory{.iov_base = room.data(), .iov_len = room.size()};
  msghdr message{};
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t result = -EINTR;
  while (result == -EINTR) {
    result = socket.calls().recvmsg(socket.fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  }
  if (result < 0) {
    got.failure = static_cast<int>(result);
    return got;
  }
  take_descriptors(message, socket.calls(), got, files);
  got.length = static_cast<std::size_t>(result);
  return got;
}

}  // namespace weft::net::shm
