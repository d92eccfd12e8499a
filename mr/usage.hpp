// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace weft::mr {

/// The purposes of registered memory. Each transport derives the access rights that it needs from them: rights_for().
enum class usage : std::uint16_t {
  none = 0,              ///< registered, and of no use yet
  send = 1 << 0,         ///< source of sends
  recv = 1 << 1,         ///< sink of receives
  read_src = 1 << 2,     ///< peers read from it
  read_dst = 1 << 3,     ///< sink of our reads. On an iWARP NIC peers may then write there too (RFC 5040 section 5.2)
  write_src = 1 << 4,    ///< source of our writes
  write_dst = 1 << 5,    ///< peers write to it
  atomic_dst = 1 << 6,   ///< peers' atomic operations work on it
  bind_window = 1 << 7,  ///< memory windows may be bound to it
  flush_visibility = 1 << 8,  ///< peers may flush: wait until their writes are visible here
  flush_persistent = 1 << 9,  ///< peers may flush: wait until their writes survive a power cut
};

/// The bits as a number, for the wire.
[[nodiscard]] constexpr std::uint16_t bits(usage value) noexcept { return static_cast<std::uint16_t>(value); }
[[nodiscard]] constexpr usage operator|(usage a, usage b) noexcept { return static_cast<usage>(bits(a) | bits(b)); }
[[nodiscard]] constexpr usage operator&(usage a, usage b) noexcept { return static_cast<usage>(bits(a) & bits(b)); }
/// Everything except `value`, unknown bits included.
[[nodiscard]] constexpr usage operator~(usage value) noexcept {
  return static_cast<usage>(static_cast<std::uint16_t>(~bits(value)));
}
constexpr usage& operator|=(usage& a, usage b) noexcept { return a = a | b; }
constexpr usage& operator&=(usage& a, usage b) noexcept { return a = a & b; }

/// Every bit that weft knows.
inline constexpr usage known_usages = static_cast<usage>((1 << 10) - 1);

/// The usages that give peers access; the others are for local operations.
inline constexpr usage peer_usages =
    usage::read_src | usage::write_dst | usage::atomic_dst | usage::flush_visibility | usage::flush_persistent;

/// Whether `set` has all the bits of `wanted`.
[[nodiscard]] constexpr bool includes(usage set, usage wanted) noexcept { return (set & wanted) == wanted; }
/// Whether `a` and `b` have a bit in common.
[[nodiscard]] constexpr bool overlaps(usage a, usage b) noexcept { return (a & b) != usage::none; }

/// The names of the bits: "read_src|write_dst".
[[nodiscard]] std::string to_string(usage value);

/// Access rights as protection hardware knows them; local reading is always allowed. See ibv_reg_mr(3).
enum class access : std::uint8_t {
  none = 0,
  local_write = 1 << 0,
  remote_write = 1 << 1,
  remote_read = 1 << 2,
  remote_atomic = 1 << 3,
  bind_window = 1 << 4,
};

[[nodiscard]] constexpr access operator|(access a, access b) noexcept {
  return static_cast<access>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
[[nodiscard]] constexpr access operator&(access a, access b) noexcept {
  return static_cast<access>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
constexpr access& operator|=(access& a, access b) noexcept { return a = a | b; }
/// Whether `set` has all the rights of `wanted`.
[[nodiscard]] constexpr bool includes(access set, access wanted) noexcept { return (set & wanted) == wanted; }

/// The rights that a usage needs with InfiniBand and RoCE: remote writes and atomics do not work without local_write,
/// and a flush for visibility is a remote read. A persistent flush needs none of these, because the owner or its device
/// carries it out. See ibv_reg_mr(3).
[[nodiscard]] constexpr access rights_for(usage purpose) noexcept {
  access rights = access::none;
  if (overlaps(purpose, usage::recv | usage::read_dst)) rights |= access::local_write;
  if (overlaps(purpose, usage::write_dst)) rights |= access::remote_write | access::local_write;
  if (overlaps(purpose, usage::atomic_dst)) rights |= access::remote_atomic | access::local_write;
  if (overlaps(purpose, usage::read_src | usage::flush_visibility)) rights |= access::remote_read;
  if (overlaps(purpose, usage::bind_window)) rights |= access::bind_window;
  return rights;
}

/// The rights that a usage needs on an iWARP NIC: those of rights_for(), and remote_write for the sink of a read,
/// because a read response arrives there as a tagged message (RFC 5040 section 5.2).
[[nodiscard]] constexpr access rights_for_iwarp(usage purpose) noexcept {
  const access rights = rights_for(purpose);
  return overlaps(purpose, usage::read_dst) ? rights | access::remote_write : rights;
}

}  // namespace weft::mr
