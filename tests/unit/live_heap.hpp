// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <malloc.h>

#include <algorithm>
#include <cstddef>

#include "sanitized.hpp"

// Of the sanitizers' own allocator; GCC ships no header that declares it.
extern "C" std::size_t __sanitizer_get_current_allocated_bytes();

namespace weft::test {

/// Bytes that this process has allocated and not freed.
inline std::size_t live_heap_bytes() {
  if constexpr (sanitized) {
    return __sanitizer_get_current_allocated_bytes();
  } else {
    const auto heap = ::mallinfo2();
    return heap.uordblks + heap.hblkhd;
  }
}

/// What has been added to the heap at most, over what was there in the beginning.
class high_water {
 public:
  void look() { highest_ = std::max(highest_, live_heap_bytes()); }
  [[nodiscard]] std::size_t added() const { return highest_ - before_; }

 private:
  std::size_t before_ = live_heap_bytes();
  std::size_t highest_ = before_;
};

}  // namespace weft::test
