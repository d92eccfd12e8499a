// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace weft::detail {

/// The number of forks between the process that first called watch_forks() and this one.
inline constinit std::atomic<unsigned> forks{0};

/// Counts forks from now on, by pthread_atfork(3). Throws std::bad_alloc.
void watch_forks();

/// Remembers the process that made an object. In a child of that process the object's threads do not exist.
class birthplace {
 public:
  birthplace() : forks_((watch_forks(), forks.load(std::memory_order_relaxed))) {}
  [[nodiscard]] bool is_parents() const noexcept { return forks.load(std::memory_order_relaxed) != forks_; }

 private:
  unsigned forks_;
};

}  // namespace weft::detail
