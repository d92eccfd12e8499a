// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/set_up.hpp>
#include <weft/net/tcp/tcp_socket.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

namespace weft::net::shm {
namespace {

// One byte more than the longest frame is seen to be too long.
using frame_room = std::array<std::byte, frame::max_bytes + 1>;

bool is_end(int number) noexcept { return number == -ECONNRESET || number == -EPIPE; }

// Waits for a packet that is not the end. One of no bytes cannot be told from that, and is taken for it.
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

// The beginning of a file of /proc. Empty if it cannot be read.
std::string_view read_beginning(const char* path, std::span<char> memory) noexcept {
  system_calls& calls = system_calls::kernel();
  const int fd = calls.open(path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return {};
  const descriptor file(fd, calls);
  const iovec where{.iov_base = memory.data(), .iov_len = memory.size()};
  const ssize_t count = calls.preadv(fd, &where, 1, 0);
  return {memory.data(), count > 0 ? static_cast<std::size_t>(count) : 0};
}

// The next number of such a text, which is cut off. None if there is none.
std::optional<std::uint32_t> take_number(std::string_view& text) noexcept {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  std::uint32_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// The number of every user who has none in the user namespace of this process.
uid_t overflow_user() noexcept {
  std::array<char, 16> memory;
  std::string_view text = read_beginning("/proc/sys/kernel/overflowuid", memory);
  return take_number(text).value_or(65534);
}

// Whether the map of the user namespace has room for all users, as that of a machine without containers.
bool every_user_has_a_number() noexcept {
  constexpr std::uint32_t all_users = 0xffff'ffff;
  std::array<char, 64> memory;
  std::string_view map = read_beginning("/proc/self/uid_map", memory);
  const auto first_inside = take_number(map);
  const auto first_outside = take_number(map);
  const auto count = take_number(map);
  return first_inside == 0 && first_outside && count == all_users;
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

ucred peer_of(const descriptor& socket) {
  ucred who{};
  socklen_t length = sizeof who;
  const int result = socket.calls().getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &who, &length);
  if (result < 0) throw system_error(-result, "ask who the peer is");
  return who;
}

bool has_no_number(const ucred& peer) noexcept {
  static const uid_t stands_for_all = overflow_user();
  return peer.uid == stands_for_all && !every_user_has_a_number();
}

bool is_same_user(const ucred& peer) noexcept { return peer.uid == ::geteuid() && !has_no_number(peer); }

namespace {

// Who may stop a process may as well have a copy out of its memory wait.
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
