// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/set_up.hpp>
#include <weft/net/tcp/tcp_socket.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/io/io.hpp>

#include <fmt/core.h>

#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace weft::net::shm {
namespace {

constexpr std::size_t control_bytes = CMSG_SPACE(received_frame::most_descriptors * sizeof(int));

// One packet more than the longest frame is seen to be too long.
struct packet {
  std::array<std::byte, frame::max_bytes + 1> bytes;
  std::size_t length = 0;
  std::size_t descriptors = 0;
  bool lost_descriptors = false;  // some did not fit, or this process has no room for them
};

// Takes the descriptors of all messages, so that none is left open that nobody knows of.
void take_descriptors(const msghdr& message, system_calls& calls, packet& got, received_frame& into) {
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(const_cast<msghdr*>(&message), each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(each) + i * sizeof fd, sizeof fd);
      descriptor taken(fd, calls);
      if (got.descriptors < into.descriptors.size()) into.descriptors[got.descriptors] = std::move(taken);
      ++got.descriptors;
    }
  }
  got.lost_descriptors = (message.msg_flags & MSG_CTRUNC) != 0;
}

// 0 or -errno; -EAGAIN: there is nothing yet. A packet of no bytes cannot be told from the end, and is taken for it.
int take_packet(descriptor& socket, packet& got, received_frame& into) {
  alignas(cmsghdr) std::array<std::byte, control_bytes> control;
  iovec memory{.iov_base = got.bytes.data(), .iov_len = got.bytes.size()};
  msghdr message{};
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t result = socket.calls().recvmsg(socket.fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (result < 0) return static_cast<int>(result);
  take_descriptors(message, socket.calls(), got, into);
  got.length = static_cast<std::size_t>(result);
  return 0;
}

bool is_end(int number) noexcept { return number == -ECONNRESET || number == -EPIPE; }

// Waits for a packet that is not the end.
task<> await_packet(descriptor& socket, packet& got, received_frame& into, const char* step, time_point deadline) {
  for (;;) {
    weft::detail::io_wait readable(io_kind::readable, socket);
    co_await run_step(readable, step, deadline);
    const int result = take_packet(socket, got, into);
    if (result == -EAGAIN || result == -EINTR) continue;
    if ((result == 0 && got.length == 0) || is_end(result)) throw error(errc::peer_vanished, step);
    if (result < 0) throw system_error(-result, step);
    co_return;
  }
}

[[noreturn]] void refuse(const char* step, const std::string& why) {
  throw error(errc::protocol_error, fmt::format("{}: {}", step, why));
}

void check_descriptors(const packet& got, frame_kind kind, const char* step) {
  const std::size_t wanted = descriptors_of(kind);
  if (got.lost_descriptors && got.descriptors < wanted) throw system_error(EMFILE, step);
  if (got.descriptors != wanted || got.lost_descriptors) {
    refuse(step, fmt::format("{}{} descriptors came with a frame that has {}", got.descriptors,
                             got.lost_descriptors ? " and more" : "", wanted));
  }
}

}  // namespace

task<received_frame> receive_frame(descriptor& socket, const char* step, time_point deadline) {
  received_frame into;
  packet got;
  co_await await_packet(socket, got, into, step, deadline);
  switch (unpack(std::span(got.bytes).first(got.length), into.contents)) {
    case frame_status::foreign:
      refuse(step, "this is no frame of weft's");
    case frame_status::malformed:
      refuse(step, "the frame makes no sense");
    case frame_status::good:
      check_descriptors(got, into.contents.kind, step);
      break;
    case frame_status::other_version:
      break;
  }
  co_return into;
}

void check_kind(const frame& got, frame_kind wanted, const char* step) {
  if (got.version != frame::spoken_version) {
    refuse(step, fmt::format("the peer speaks version {} of this set-up, and this end version {}", got.version,
                             frame::spoken_version));
  }
  if (got.kind != wanted) refuse(step, "another frame came");
}

task<> discard_packet(descriptor& socket, const char* step, time_point deadline) {
  received_frame into;
  packet got;
  co_await await_packet(socket, got, into, step, deadline);
}

int try_send_frame(const descriptor& socket, const frame& what, std::span<const int> descriptors) noexcept {
  assert(descriptors.size() <= received_frame::most_descriptors);
  std::array<std::byte, frame::max_bytes> bytes;
  alignas(cmsghdr) std::array<std::byte, control_bytes> control{};
  iovec memory{.iov_base = bytes.data(), .iov_len = pack(what, bytes)};
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

void send_frame(const descriptor& socket, const frame& what, std::span<const int> descriptors, const char* step) {
  const int result = try_send_frame(socket, what, descriptors);
  if (is_end(result)) throw error(errc::peer_vanished, step);
  if (result < 0) throw system_error(-result, step);
}

ucred peer_of(const descriptor& socket) {
  ucred who{};
  socklen_t length = sizeof who;
  const int result = socket.calls().getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &who, &length);
  if (result < 0) throw system_error(-result, "ask who the peer is");
  return who;
}

bool is_same_user(const ucred& peer) noexcept { return peer.uid == ::geteuid(); }

std::unique_ptr<net::link> finish_set_up(channel memory, descriptor& socket, const frame& agreed, std::string peer,
                                         std::shared_ptr<software::domain> home,
                                         std::shared_ptr<net::receive_queue> receives) {
  memory.close_file();
  executor_core::current()->io().forget(socket);
  established made{.memory = std::move(memory),
                   .socket = std::move(socket),
                   .incoming_reads = agreed.incoming_reads,
                   .outgoing_reads = agreed.outgoing_reads,
                   .peer = std::move(peer)};
  return make_link(std::move(made), std::move(home), std::move(receives));
}

}  // namespace weft::net::shm
