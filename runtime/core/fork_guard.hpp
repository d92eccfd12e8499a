// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

namespace weft::detail {

/// Has every child of fork(2) find `mutex` unlocked, also if a thread that the child does not have holds it. False if
/// there is no memory for that.
template <auto& mutex>
bool unlock_in_children() noexcept {
  static const int failed = ::pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
  return failed == 0;
}

}  // namespace weft::detail
