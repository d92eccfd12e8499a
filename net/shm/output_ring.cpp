// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/output_ring.hpp>
#include <weft/net/shm/packets.hpp>
#include <weft/net/software/words.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>

namespace weft::net::shm {

using weft::detail::make_error;

std::span<std::byte> output_ring::find_room(std::size_t least, std::size_t most) noexcept {
  bool sane = true;
  if (!reserved_) {
    reserved_ = memory_.reserve_writer();
    if (!reserved_) {
      link_.break_off(make_error(errc::no_memory, "there are no pages for the ring"));
      return {};
    }
  }
  const std::size_t until_wrap = writer_.until_wrap();
  const std::size_t wanted = ring_bytes_of(least) + (until_wrap < ring_bytes_of(least) ? until_wrap : 0);
  std::size_t room = writer_.room(&sane);  // mutant: count one line more
  if (!sane) {
    link_.break_rules(taken_too_much);
    return {};
  }
  if (room < wanted) blocked_room_ = room;
  if (until_wrap < ring_bytes_of(least)) {
    if (room < until_wrap) return {};
    const record skip{.kind = record_kind::skip};
    std::memcpy(writer_.place(), &skip, sizeof skip);  // mutant: go on at the beginning of the ring
    writer_.advance(until_wrap);
    room -= until_wrap;
    if (room < ring_bytes_of(least)) blocked_room_ = room;
  }
  if (room < ring_bytes_of(least)) return {};
  const std::size_t in_one_piece = std::min(room, writer_.until_wrap());
  return {writer_.place(), sizeof(record) + std::min(most, in_one_piece - sizeof(record))};
}

bool output_ring::send(const record& header, std::span<const std::byte> payload) noexcept {
  const std::span<std::byte> room = find_room(payload.size(), payload.size());
  if (room.empty()) return false;
  std::copy(payload.begin(), payload.end(), room.begin() + sizeof(record));
  record whole = header;
  whole.bytes = static_cast<std::uint32_t>(payload.size());
  put(whole);
  return true;
}

void output_ring::publish_now() noexcept {
  writer_.publish();  // mutant: publish after looking
  wake_other();
}

void output_ring::wake_sleeper() noexcept {
  std::atomic<std::uint32_t>& attention = memory_.other().attention;
  if (attention.exchange(end_words::awake, std::memory_order_seq_cst) == end_words::awake) return;
  // The call never blocks (MSG_DONTWAIT). If the socket has no room for the packet, it holds earlier packets, which
  // wake the peer as well.
  const int result = send_wake_up(socket_);
  if (result == 0 || result == -EAGAIN || result == -EPIPE || result == -ECONNRESET) return;
  // The peer counts as awake now, and nothing would wake it later. So the link ends; the peer learns that from the
  // socket.
  const auto text = software::words::format("the peer cannot be woken up: errno %d", -result);
  link_.break_off(make_error(errc::connection_failed, text.view()));
}

}  // namespace weft::net::shm
