// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

namespace weft::mr {

/// Gives 64-bit names to the descriptors of peers' regions, for programs that pass keys on as numbers. Others keep the
/// remote_region itself, which costs nothing to unpack and needs no unmapping. See fi_mr_map_raw(3).
///
/// Not thread-safe. A map holds nothing but its own memory, so keys may still be mapped when it is destroyed.
class key_map {
 public:
  /// Reads a packed remote_region. Each call returns a new name, never 0, which no other call in the process returns.
  /// Throws errc::malformed, saying what is wrong with the bytes.
  [[nodiscard]] std::uint64_t map(std::span<const std::byte> raw);
  /// Throws errc::invalid_argument for a key that is not mapped.
  [[nodiscard]] const remote_region& find(std::uint64_t key) const;
  /// Throws errc::invalid_argument for a key that is not mapped.
  void unmap(std::uint64_t key);
  /// How many keys are mapped.
  [[nodiscard]] std::size_t size() const noexcept { return regions_.size(); }

 private:
  std::unordered_map<std::uint64_t, remote_region> regions_;
};

}  // namespace weft::mr
