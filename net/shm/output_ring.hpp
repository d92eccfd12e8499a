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

  /// Finds contiguous room for a record: its header, and a payload of at least `least` and at most `most` bytes. Empty
  /// if there is not enough room yet.
  [[nodiscard]] std::span<std::byte> find_room(std::size_t least, std::size_t most) noexcept;
  /// Finds room for a record with `bytes` bytes of payload, without wrapping the ring and without loading the peer's
  /// position. Empty if there is none that way; nothing has changed then.
  [[nodiscard]] std::span<std::byte> room_at_once(std::size_t bytes) const noexcept {
    if (!reserved_ || writer_.contiguous_known_room() < ring_bytes_of(bytes)) return {};
    return {writer_.place(), sizeof(record) + bytes};
  }
  /// Writes the header in front of a payload that is already in the room from find_room().
  void put(const record& header) noexcept {
    ::new (static_cast<void*>(writer_.place())) record(header);
    writer_.advance(ring_bytes_of(header.bytes));
  }
  /// Writes a whole record. False if there is not enough room yet.
  [[nodiscard]] bool send(const record& header, std::span<const std::byte> payload) noexcept;
  void publish() noexcept {
    if (writer_.has_unpublished()) publish_now();
  }
  /// Wakes the other end if it sleeps; called after a publication or a release. This end's store and its load of
  /// `attention` are seq_cst, and so is the other end's store when it falls asleep; a seq_cst fence separates that
  /// store from its load. So either the other end sees what was published, or this end sees that the other sleeps.
  void wake_other() noexcept {
    if (!writer_.other_is_awake()) [[unlikely]]
      wake_sleeper();
  }

  /// Called before output is tried again.
  void begin() noexcept { blocked_room_.reset(); }
  /// True if output that stopped for want of room can go on. Also true if any output `waits` and the peer's position is
  /// impossible; `*sane` is false then.
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
