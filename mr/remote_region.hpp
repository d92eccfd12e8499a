// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/usage.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::mr {

/// A range of a peer's registered memory. A value: it owns nothing, and the peer may revoke the key at any time.
class remote_slice {
 public:
  /// Throws errc::out_of_range if the addresses wrap around.
  remote_slice(std::uint32_t key, std::uint64_t address, std::uint64_t size, mr::usage purpose);

  [[nodiscard]] std::uint32_t key() const noexcept { return key_; }
  /// In the peer's terms: its virtual address, or its iova.
  [[nodiscard]] std::uint64_t address() const noexcept { return address_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] mr::usage usage() const noexcept { return usage_; }

  /// Whether the peer has opened it for all of `purpose`.
  [[nodiscard]] bool allows(mr::usage purpose) const noexcept { return includes(usage_, purpose); }
  /// Throws errc::access_denied, with `operation` in words, unless allows(purpose).
  void require(mr::usage purpose, const char* operation) const;

  /// `length` bytes from `offset` on. Throws errc::out_of_range rather than reach beyond this slice.
  [[nodiscard]] remote_slice slice(std::uint64_t offset, std::uint64_t length) const;

  friend bool operator==(const remote_slice&, const remote_slice&) = default;

 private:
  std::uint64_t address_;
  std::uint64_t size_;
  std::uint32_t key_;
  mr::usage usage_;
};

/// A whole region of a peer, as it travels from the one who registered it to the one who uses it.
///
/// The wire form is 24 bytes, little-endian: version (1 byte, 1), zero (1), usage (2), key (4), address (8), length
/// (8).
class remote_region : public remote_slice {
 public:
  static constexpr std::size_t packed_bytes = 24;

  /// Throws errc::zero_length if empty, errc::out_of_range if the addresses wrap around.
  remote_region(std::uint32_t key, std::uint64_t address, std::uint64_t size, mr::usage purpose);

  [[nodiscard]] std::array<std::byte, packed_bytes> pack() const noexcept;

  /// Reads the first packed_bytes of what a peer sent. Throws errc::malformed, saying what is wrong with them.
  [[nodiscard]] static remote_region unpack(std::span<const std::byte> bytes);
};

}  // namespace weft::mr
