// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#if defined(__SANITIZE_ADDRESS__)
#define WEFT_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEFT_ADDRESS_SANITIZER 1
#endif
#endif

#if defined(WEFT_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#endif

// Makes the use of pool memory that nobody owns show: the address sanitizer forbids it, and without NDEBUG it is filled
// with 0xDB when it is freed.
namespace weft::mr::detail {

inline void forbid(std::span<std::byte> memory) noexcept {
#if defined(WEFT_ADDRESS_SANITIZER)
  ASAN_POISON_MEMORY_REGION(memory.data(), memory.size());
#endif
  static_cast<void>(memory);
}

inline void permit(std::span<std::byte> memory) noexcept {
#if defined(WEFT_ADDRESS_SANITIZER)
  ASAN_UNPOISON_MEMORY_REGION(memory.data(), memory.size());
#endif
  static_cast<void>(memory);
}

inline void spoil(std::span<std::byte> memory) noexcept {
#if !defined(NDEBUG)
  std::memset(memory.data(), 0xDB, memory.size());
#endif
  forbid(memory);
}

}  // namespace weft::mr::detail
