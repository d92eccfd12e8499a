// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/memory_record.hpp>
#include <weft/mr/usage.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::mr {

/// A borrowed view of registered memory: a part of a region or of a buffer, which must outlive every use of the slice.
class slice {
 public:
  slice() noexcept = default;
  /// A part of the memory of `record`. With a null record the memory is not registered, and operations refuse the
  /// slice.
  slice(std::span<std::byte> memory, const memory_record* record) noexcept
      : data_(memory.data()), size_(memory.size()), record_(record) {}

  /// Where the memory is. The processor may touch it only if kind() is memory_kind::host.
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  /// In bytes.
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// The memory as a range. The processor may touch it only if kind() is memory_kind::host.
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data_, size_}; }

  /// The record of the memory; null if the memory is not registered.
  [[nodiscard]] const memory_record* record() const noexcept { return record_; }
  /// Where the memory is registered: operations take slices of their own device's domain only.
  [[nodiscard]] const mr::registrar* domain() const noexcept { return record_ != nullptr ? record_->home : nullptr; }
  /// The usage that the memory is registered for: what local operations may do with it.
  [[nodiscard]] mr::usage usage() const noexcept { return record_ != nullptr ? record_->usage : mr::usage::none; }
  /// The kind of the memory.
  [[nodiscard]] memory_kind kind() const noexcept {
    return record_ != nullptr && record_->device != nullptr ? memory_kind::device : memory_kind::host;
  }

  /// `length` bytes from `offset` on. Throws errc::out_of_range rather than reach beyond this slice.
  [[nodiscard]] slice subslice(std::size_t offset, std::size_t length) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  const memory_record* record_ = nullptr;
};

namespace detail {
/// Throws errc::out_of_range unless [offset, offset + length) lies within `size` bytes.
void check_range(std::uint64_t offset, std::uint64_t length, std::uint64_t size);

/// The size of all parts together, in bytes.
[[nodiscard]] inline std::size_t total_size(std::span<const slice> parts) noexcept {
  std::size_t bytes = 0;
  for (const slice& part : parts) bytes += part.size();
  return bytes;
}
}  // namespace detail

}  // namespace weft::mr
