// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/birthplace.hpp>

#include <pthread.h>

#include <new>

namespace weft::detail {

void watch_forks() {
  static const int failed = ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  if (failed != 0) throw std::bad_alloc();
}

}  // namespace weft::detail
