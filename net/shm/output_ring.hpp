// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/shm/channel.hpp>
#include <weft/net/shm/link_breaker.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/shm/ring.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <cstddef>
#include <new>
#include <optional>
#include <span>

namespace weft::net::shm {

/// The ring that this end writes, with the wake-ups for its records.
class output_ring {
 public:
  output_ring(channel& memory, descriptor& socket, link_breaker& link) noexcept
      : memory_(memory), socket_(socket), link_(link), writer_(memory.writer()) {}
  output_ring(const output_ring&) = delete;
  output_ring& operator=(const output_ring&) = delete;

  /// Finds contiguous room for a record: its header, and a payload of at least `least` and at most `most` bytes. May
  /// first write a `skip`. The result is empty if there is not enough room yet, or if this call breaks the link,
  /// because the kernel has no pages for the ring, or the peer's read position is impossible.
  [[nodiscard]] std::span<std::byte> find_room(std::size_t least, std::size_t most) noexcept;
  /// Finds room for a record with `bytes` bytes of payload, without wrapping the ring and without loading the peer's
  /// position. Changes nothing. Empty if there is no such room, or before find_room() has reserved the ring's pages.
  [[nodiscard]] std::span<std::byte> room_at_once(std::size_t bytes) const noexcept {
    if (!reserved_ || writer_.contiguous_known_room() < ring_bytes_of(bytes)) return {};
    return {writer_.place(), sizeof(record) + bytes};
  }
  /// Writes the header in front of a payload that is already in the room from find_room() or room_at_once().
  void put(const record& header) noexcept {
    ::new (static_cast<void*>(writer_.place())) record(header);
    writer_.advance(ring_bytes_of(header.bytes));
  }
  /// Writes a whole record. False if find_room() finds no room for it.
  [[nodiscard]] bool send(const record& header, std::span<const std::byte> payload) noexcept;
  void publish() noexcept {
    if (writer_.has_unpublished()) publish_now();
  }
  /// Wakes the other end if it sleeps; breaks the link if the wake-up fails. Called after a publication, or after a
  /// release for which the other end may wait: the store of the new position and the load of `attention` here are
  /// seq_cst. An end that falls asleep stores `attention`, also seq_cst, and then, behind a seq_cst fence, loads the
  /// positions once more. So either the other end sees the new position, or this end sees that the other sleeps.
  void wake_other() noexcept {
    if (!writer_.other_is_awake()) [[unlikely]]
      wake_sleeper();
  }

  /// Forgets that output had stopped for want of room; called before output is tried again.
  void begin() noexcept { blocked_room_.reset(); }
  /// Whether there is more room than when output stopped for want of it. Also true, with `*sane` false, if the peer's
  /// position is impossible. Looks at that position only if output had stopped, or if any output `waits`.
  [[nodiscard]] bool found_room(bool waits, bool* sane) noexcept {
    if (!waits && !blocked_room_) return false;
    const std::size_t room = writer_.room(sane);
    return !*sane || (blocked_room_ && room > *blocked_room_);
  }

 private:
  void publish_now() noexcept;
  void wake_sleeper() noexcept;

  channel& memory_;
  descriptor& socket_;
  link_breaker& link_;
  ring_writer writer_;
  std::optional<std::size_t> blocked_room_;  // the room that there was when output stopped for want of it
  bool reserved_ = false;                    // the ring's pages are reserved
};

/// The fault of a peer whose read position is impossible.
inline constexpr std::string_view taken_too_much = "the peer's read position is beyond what was written";

}  // namespace weft::net::shm
