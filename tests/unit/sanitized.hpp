// SPDX-License-Identifier: Apache-2.0
#pragma once

// WEFT_TEST_ASAN and WEFT_TEST_TSAN are defined in builds with that sanitizer, of either compiler.
#if defined(__SANITIZE_ADDRESS__)
#define WEFT_TEST_ASAN
#elif defined(__SANITIZE_THREAD__)
#define WEFT_TEST_TSAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WEFT_TEST_ASAN
#elif __has_feature(thread_sanitizer)
#define WEFT_TEST_TSAN
#endif
#endif

namespace weft::test {

/// Whether this is a build with the address or the thread sanitizer.
#if defined(WEFT_TEST_ASAN) || defined(WEFT_TEST_TSAN)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace weft::test
