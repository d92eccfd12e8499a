// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/sanitized.hpp>

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

// Exposes uses of freed pool memory: the address sanitizer reports them, and without NDEBUG memory is filled with 0xDB
// when it is freed. Nothing is filled under the thread sanitizer, which is to see the accesses of an ordinary build.
namespace weft::mr::detail {

#if defined(NDEBUG)
inline constexpr bool fills_freed_memory = false;
#else
inline constexpr bool fills_freed_memory = !weft::detail::is_thread_sanitized;
#endif

/// Whether memory is marked in any way when it is taken and freed.
#if defined(WEFT_ADDRESS_SANITIZER)
inline constexpr bool marks_free_memory = true;
#else
inline constexpr bool marks_free_memory = fills_freed_memory;
#endif

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
  if constexpr (fills_freed_memory) std::memset(memory.data(), 0xDB, memory.size());
  forbid(memory);
}

}  // namespace weft::mr::detail
