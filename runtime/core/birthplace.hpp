// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace weft::detail {

/// How often this process is a child of the one that loaded the library; counted once watch_forks() has been called.
inline constinit std::atomic<unsigned> forks{0};

/// Has forks counted from now on, by pthread_atfork(3). Throws std::bad_alloc.
void watch_forks();

/// Whether an object was made by a process of which this one is a child: whatever it has in threads is not here.
class birthplace {
 public:
  birthplace() : forks_((watch_forks(), forks.load(std::memory_order_relaxed))) {}
  [[nodiscard]] bool is_parents() const noexcept { return forks.load(std::memory_order_relaxed) != forks_; }

 private:
  unsigned forks_;
};

}  // namespace weft::detail
