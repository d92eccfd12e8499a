// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::net {

/// A byte of the other end's that its peers may write and read, and that nobody looks at: a sign of life is asked for
/// there, by transports that need memory for it.
struct landing_place {
  std::uint32_t key = 0;      ///< 0: there is none
  std::uint64_t address = 0;  ///< of its first byte, as the peer says it

  friend constexpr bool operator==(const landing_place&, const landing_place&) noexcept = default;
};

/// What transports may do for each other beyond their standard when weft is at both ends. A connection uses what both
/// ends have.
struct native_features {
  bool atomics = false;       ///< fetch_add and compare_swap
  bool immediate = false;     ///< immediate data behind a write
  bool large_frames = false;  ///< frames beyond the network's segment size, with other messages' in between

  bool rails = false;    ///< several links for one connection: net/rails
  bool resumes = false;  ///< waits for a link once all are lost: connection_options::resume_within

  bool device_memory = false;  ///< copies to and from memory of devices: connection_options::device_memory
  bool write_notices = false;  ///< hears what has been written where a counter wants to know: write_notices

  /// Whether what the program writes goes in pieces, or more than once, so that no link counts it.
  [[nodiscard]] constexpr bool cuts_writes() const noexcept { return rails || device_memory; }

  friend constexpr bool operator==(const native_features&, const native_features&) noexcept = default;
  /// What both can do.
  friend constexpr native_features operator&(const native_features& a, const native_features& b) noexcept {
    return {.atomics = a.atomics && b.atomics,
            .immediate = a.immediate && b.immediate,
            .large_frames = a.large_frames && b.large_frames,
            .rails = a.rails && b.rails,
            .resumes = a.resumes && b.resumes,
            .device_memory = a.device_memory && b.device_memory,
            .write_notices = a.write_notices && b.write_notices};
  }
};

}  // namespace weft::net
