// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/tcp_socket.hpp>
#include <weft/net/shm/set_up.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace weft::net::shm {
namespace {

// One byte more than the longest frame, so that a longer packet is seen to be too long.
using frame_room = std::array<std::byte, frame::max_bytes + 1>;

bool is_end(int number) noexcept { return number == -ECONNRESET || number == -EPIPE; }

// Waits for a packet. An empty packet is taken for the end of the stream, because the two look alike.
task<> await_packet(descriptor& socket, packet& got, frame_room& room, received_frame& into, const char* step,
                    time_point deadline) {
  for (;;) {
    co_await wait_for_input(socket, step, deadline);
    got = take_packet(socket, room, into.descriptors);
    if (got.failure == -EAGAIN || got.failure == -EINTR) continue;
    if ((got.failure == 0 && got.length == 0) || is_end(got.failure)) throw error(errc::peer_vanished, step);
    if (got.failure < 0) throw system_error(-got.failure, step);
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
  frame_room room;
  co_await await_packet(socket, got, room, into, step, deadline);
  switch (unpack(std::span(room).first(got.length), into.contents)) {
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
  frame_room room;
  co_await await_packet(socket, got, room, into, step, deadline);
}

int try_send_frame(const descriptor& socket, const frame& what, std::span<const int> descriptors) noexcept {
  std::array<std::byte, frame::max_bytes> bytes;
  const std::size_t length = pack(what, bytes);
  return send_packet(socket, std::span(bytes).first(length), descriptors);
}

void send_frame(const descriptor& socket, const frame& what, std::span<const int> descriptors, const char* step) {
  const int result = try_send_frame(socket, what, descriptors);
  if (is_end(result)) throw error(errc::peer_vanished, step);
  if (result < 0) throw system_error(-result, step);
}

namespace {

// The peer's pid; 0 if it runs as another or unknown user, or has no pid here. Another user could keep
// process_vm_readv(2) from returning; a process of the same user can stop this process anyway.
pid_t process_of_same_user(const descriptor& socket) noexcept {
  ucred who{};
  socklen_t length = sizeof who;
  const int result = socket.calls().getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &who, &length);
  return result == 0 && is_same_user(who) ? who.pid : 0;
}

}  // namespace

std::unique_ptr<net::link> finish_set_up(channel memory, descriptor& socket, const frame& agreed, std::string peer,
                                         std::shared_ptr<software::domain> home,
                                         std::shared_ptr<net::receive_queue> receives) {
  memory.close_file();
  executor_core::current()->io().forget(socket);
  const pid_t process = process_of_same_user(socket);
  established made{.memory = std::move(memory),
                   .socket = std::move(socket),
                   .incoming_reads = agreed.incoming_reads,
                   .outgoing_reads = agreed.outgoing_reads,
                   .peer = std::move(peer),
                   .process = process};
  return make_link(std::move(made), std::move(home), std::move(receives));
}

}  // namespace weft::net::shm
