// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::mr {

/// A key by which peers name memory. Opaque to all but the fabric that made it: a number of up to 64 bits, or a longer
/// blob, as libfabric's FI_MR_RAW has it (fi_mr(3)). A value.
class remote_key {
 public:
  /// The longest blob. A descriptor with blobs for all of its fabrics stays below 200 bytes.
  static constexpr std::size_t max_bytes = 32;

  constexpr remote_key() noexcept = default;  ///< 0: peers have no access
  /// A numeric key, like those of RDMA devices and iWARP.
  constexpr remote_key(std::uint64_t number) noexcept : words_{number} {}
  /// Throws errc::out_of_range for a blob that is no longer than a number, or longer than max_bytes.
  explicit remote_key(std::span<const std::byte> blob);

  /// Whether it is a number, and no blob.
  [[nodiscard]] constexpr bool is_number() const noexcept { return blob_bytes_ == 0; }
  /// 0 for a blob.
  [[nodiscard]] constexpr std::uint64_t number() const noexcept { return is_number() ? words_[0] : 0; }
  /// Empty for a number.
  [[nodiscard]] std::span<const std::byte> blob() const noexcept {
    return std::as_bytes(std::span(words_)).first(blob_bytes_);
  }

  friend constexpr bool operator==(const remote_key&, const remote_key&) noexcept = default;

 private:
  std::array<std::uint64_t, max_bytes / sizeof(std::uint64_t)> words_{};
  std::uint8_t blob_bytes_ = 0;
};

}  // namespace weft::mr
