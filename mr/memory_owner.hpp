// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/backing_file.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <type_traits>

namespace weft::mr {

namespace detail {

template <class T>
concept mutable_bytes = requires(T& range) {
  std::as_writable_bytes(std::span(range));
  requires std::is_trivially_copyable_v<typename decltype(std::span(range))::element_type>;
};

template <class T>
struct is_span : std::false_type {};
template <class T, std::size_t Extent>
struct is_span<std::span<T, Extent>> : std::true_type {};

}  // namespace detail

/// Something that owns a contiguous range of trivially copyable elements: a vector, an array, a mapping with data() and
/// size(), or a unique_ptr, shared_ptr or optional of such an owner. Not a view.
template <class T>
concept memory_owner = std::is_object_v<T> && std::move_constructible<T> && !detail::is_span<T>::value &&
                       (detail::mutable_bytes<T> || requires(T& holder) {
                         requires detail::mutable_bytes<std::remove_reference_t<decltype(*holder)>>;
                       });

namespace detail {

template <memory_owner Owner>
std::span<std::byte> bytes_of(Owner& owner) noexcept {
  if constexpr (mutable_bytes<Owner>) {
    return std::as_writable_bytes(std::span(owner));
  } else {
    return std::as_writable_bytes(std::span(*owner));
  }
}

/// The file behind the memory, if the owner has a file(), as a mapping does; else none.
template <memory_owner Owner>
backing_file file_of(const Owner& owner) noexcept {
  if constexpr (requires {
                  { owner.file() } -> std::convertible_to<backing_file>;
                }) {
    return owner.file();
  } else if constexpr (requires {
                         { (*owner).file() } -> std::convertible_to<backing_file>;
                       }) {
    return (*owner).file();
  } else {
    return {};
  }
}

}  // namespace detail

}  // namespace weft::mr
