// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft::detail {

/// Whether this code is built with the thread sanitizer.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool is_thread_sanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool is_thread_sanitized = true;
#else
inline constexpr bool is_thread_sanitized = false;
#endif
#else
inline constexpr bool is_thread_sanitized = false;
#endif

/// Whether this code is built with the address, memory or thread sanitizer, which have to see what happens to memory.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool is_sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = is_thread_sanitized;
#endif
#else
inline constexpr bool is_sanitized = is_thread_sanitized;
#endif

}  // namespace weft::detail
