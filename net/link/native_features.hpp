// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::net {

/// A byte of an end's memory that its peers may write and read, and whose value nobody uses. A transport whose probe
/// needs memory accesses this byte to find out whether that end is alive.
struct landing_place {
  std::uint32_t key = 0;      ///< 0: there is none
  std::uint64_t address = 0;  ///< of the byte, in that end's terms

  friend constexpr bool operator==(const landing_place&, const landing_place&) noexcept = default;
};

/// Extensions beyond a transport's standard, for connections with weft at both ends. A connection uses those that both
/// ends have.
struct native_features {
  bool atomics = false;       ///< fetch_add and compare_swap
  bool immediate = false;     ///< immediate data behind a write
  bool large_frames = false;  ///< frames larger than the network's segments, interleaved with those of other messages

  bool rails = false;    ///< several links for one connection: net/rails
  bool resumes = false;  ///< waits for a new link once all are lost: connection_options::resume_within

  bool device_memory = false;     ///< copies to and from memory of devices: connection_options::device_memory
  bool persistent_flush = false;  ///< makes memory of files persistent: connection_options::persistent_flush
  bool write_notices = false;     ///< understands message_kind::written, by which a peer reports writes to count
  bool atomic_write = false;      ///< the device takes ATOMIC WRITE: ibv_wr_atomic_write(3)

  /// Whether a write of the program may be split or repeated, so links cannot count writes.
  [[nodiscard]] constexpr bool cuts_writes() const noexcept { return rails || device_memory; }

  /// Whether the ends ask each other, as the owners of memory, to copy it or make it persistent: owner_message.
  [[nodiscard]] constexpr bool asks_owners() const noexcept { return device_memory || persistent_flush; }

  friend constexpr bool operator==(const native_features&, const native_features&) noexcept = default;
  /// The features that both have.
  friend constexpr native_features operator&(const native_features& a, const native_features& b) noexcept {
    return {.atomics = a.atomics && b.atomics,
            .immediate = a.immediate && b.immediate,
            .large_frames = a.large_frames && b.large_frames,
            .rails = a.rails && b.rails,
            .resumes = a.resumes && b.resumes,
            .device_memory = a.device_memory && b.device_memory,
            .persistent_flush = a.persistent_flush && b.persistent_flush,
            .write_notices = a.write_notices && b.write_notices,
            .atomic_write = a.atomic_write && b.atomic_write};
  }
};

}  // namespace weft::net
