// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

namespace weft::sim {

/// Keeps the thread that makes it, and those which that one starts, on the processor where it is: threads of which one
/// runs at a time wake one another several times faster there. Where that is not allowed, they are slow.
class one_processor {
 public:
  one_processor() noexcept : known_(::sched_getaffinity(0, sizeof before_, &before_) == 0) {
    const int here = ::sched_getcpu();
    if (!known_ || here < 0) return;
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(static_cast<unsigned>(here), &only);
    static_cast<void>(::sched_setaffinity(0, sizeof only, &only));
  }
  one_processor(const one_processor&) = delete;
  one_processor& operator=(const one_processor&) = delete;
  ~one_processor() {
    if (known_) static_cast<void>(::sched_setaffinity(0, sizeof before_, &before_));
  }

 private:
  cpu_set_t before_{};
  const bool known_;
};

}  // namespace weft::sim
