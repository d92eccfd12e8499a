// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::net::iwarp {

/// CRC32C (Castagnoli) over bytes that come in pieces, as MPA and iSCSI use it.
/// See RFC 5044 section 4.4 and RFC 3720 appendix B.4.
class crc32c {
 public:
  /// Appends bytes to those that the checksum covers.
  void add(std::span<const std::byte> bytes) noexcept;

  /// The checksum of everything added so far.
  [[nodiscard]] std::uint32_t value() const noexcept { return ~state_; }

 private:
  std::uint32_t state_ = ~std::uint32_t{0};
};

/// The checksum of one run of bytes.
[[nodiscard]] std::uint32_t crc32c_of(std::span<const std::byte> bytes) noexcept;

}  // namespace weft::net::iwarp
