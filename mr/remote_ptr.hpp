// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>
#include <weft/runtime/error.hpp>

#include <cstdint>
#include <type_traits>

namespace weft::mr {

/// A type for a peer's memory. Both ends must agree on the type and on its byte order.
template <class T>
concept remote_object = std::is_trivially_copyable_v<T> && std::is_object_v<T> && !std::is_pointer_v<T>;

template <remote_object T>
class remote_span;

/// One T in a peer's memory. A value, and accepted wherever a remote_slice is.
template <remote_object T>
class remote_ptr {
 public:
  /// Throws errc::out_of_range unless the slice is as large as a T, errc::misaligned unless its address suits a T.
  explicit remote_ptr(const remote_slice& where) : where_(where) {
    if (where.size() != sizeof(T))
      throw error(errc::out_of_range, "make a remote_ptr of a slice whose size is not that of the type");
    if (where.address() % alignof(T) != 0) throw error(errc::misaligned, "make a remote_ptr to this address");
  }

  /// The untyped slice.
  [[nodiscard]] const remote_slice& slice() const noexcept { return where_; }
  /// The untyped slice.
  operator remote_slice() const noexcept { return where_; }

  friend bool operator==(const remote_ptr&, const remote_ptr&) = default;

 private:
  remote_slice where_;
};

/// An array of T in a peer's memory. A value, and accepted wherever a remote_slice is.
template <remote_object T>
class remote_span {
 public:
  /// As many elements as fit; bytes left over at the end are cut off. Throws errc::misaligned unless the address suits
  /// a T.
  explicit remote_span(const remote_slice& where) : where_(where.slice(0, where.size() / sizeof(T) * sizeof(T))) {
    if (where.address() % alignof(T) != 0) throw error(errc::misaligned, "make a remote_span at this address");
  }

  /// The number of elements.
  [[nodiscard]] std::uint64_t size() const noexcept { return where_.size() / sizeof(T); }
  /// Whether it has no elements.
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// The untyped slice.
  [[nodiscard]] const remote_slice& slice() const noexcept { return where_; }
  /// The untyped slice.
  operator remote_slice() const noexcept { return where_; }

  /// The element at `index`. Throws errc::out_of_range.
  [[nodiscard]] remote_ptr<T> operator[](std::uint64_t index) const { return remote_ptr<T>(part(index, 1)); }
  /// `count` elements from `offset` on. Throws errc::out_of_range rather than reach beyond this span.
  [[nodiscard]] remote_span subspan(std::uint64_t offset, std::uint64_t count) const {
    return remote_span(part(offset, count));
  }

  friend bool operator==(const remote_span&, const remote_span&) = default;

 private:
  // `offset` and `count` may come from a peer, so their products with the element's size must not wrap.
  [[nodiscard]] remote_slice part(std::uint64_t offset, std::uint64_t count) const {
    if (offset > size() || count > size() - offset) {
      throw error(errc::out_of_range, "take elements beyond the end of a remote_span");
    }
    return where_.slice(offset * sizeof(T), count * sizeof(T));
  }

  remote_slice where_;
};

}  // namespace weft::mr
