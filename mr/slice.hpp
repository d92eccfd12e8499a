// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/usage.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::mr {

class domain;
namespace detail {
class region_state;
}

/// A borrowed view of registered memory: a part of a region or of a buffer, whose owner must outlive its use.
class slice {
 public:
  slice() noexcept = default;
  slice(std::span<std::byte> memory, std::uint32_t local_key, mr::usage purpose, const mr::domain& home,
        detail::region_state* region = nullptr) noexcept
      : data_(memory.data()),
        size_(memory.size()),
        domain_(&home),
        region_(region),
        local_key_(local_key),
        usage_(purpose) {}

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }

  /// The key by which the transport names the memory in our own operations; 0 where it needs none.
  [[nodiscard]] std::uint32_t local_key() const noexcept { return local_key_; }
  /// Where the memory is registered: operations take slices of their own device's domain only.
  [[nodiscard]] const mr::domain* domain() const noexcept { return domain_; }
  [[nodiscard]] mr::usage usage() const noexcept { return usage_; }

  /// `length` bytes from `offset` on. Throws errc::out_of_range rather than reach beyond this slice.
  [[nodiscard]] slice subslice(std::size_t offset, std::size_t length) const;

 private:
  friend class region_pin;

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  const mr::domain* domain_ = nullptr;
  detail::region_state* region_ = nullptr;  // null: of a buffer
  std::uint32_t local_key_ = 0;
  mr::usage usage_ = mr::usage::none;
};

namespace detail {
/// Throws errc::out_of_range unless [offset, offset + length) lies within `size` bytes.
void check_range(std::uint64_t offset, std::uint64_t length, std::uint64_t size);
}  // namespace detail

}  // namespace weft::mr
