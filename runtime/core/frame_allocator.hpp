// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace weft::detail {

/// Memory for coroutine frames: free lists per thread and size class, without locks or atomics.
/// A frame freed on another thread than it came from stays with that thread. Sanitizer builds go
/// straight to the heap, so that the use of a dead frame is seen.
[[nodiscard]] void* allocate_frame(std::size_t bytes);
void free_frame(void* frame, std::size_t bytes) noexcept;

}  // namespace weft::detail
