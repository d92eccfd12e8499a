// SPDX-License-Identifier: Apache-2.0
// What the tests of handles that the compiler has duplicated share.
#pragma once

#include <new>

#include "kit/test.hpp"

namespace weft::test {

#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
inline constexpr bool compiler_destroys_twice = true;
#else
inline constexpr bool compiler_destroys_twice = false;
#endif

/// What weft says of `what` when it finds out.
#define WORDS_OF_A_DUPLICATE(what) what " was destroyed twice, or used after it was destroyed.*docs/gcc-12.md"

/// A second object made of a first one bit by bit, as GCC 12 makes them. Both are destroyed.
template <class T>
class duplicate : private immovable {
 public:
  explicit duplicate(const T& of) noexcept { std::memcpy(memory_, static_cast<const void*>(&of), sizeof(T)); }
  ~duplicate() { std::destroy_at(&**this); }
  T& operator*() noexcept { return *std::launder(reinterpret_cast<T*>(memory_)); }
  T* operator->() noexcept { return &**this; }

 private:
  alignas(T) std::byte memory_[sizeof(T)];
};

}  // namespace weft::test
