// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/owned_thread.hpp>
#include <weft/runtime/error.hpp>

namespace weft::detail {

owned_thread::owned_thread(void* (*body)(void*), void* argument) {
  watch_forks();
  forks_ = forks.load(std::memory_order_relaxed);
  const int failure = ::pthread_create(&thread_, nullptr, body, argument);
  if (failure != 0) throw system_error(failure, "start a thread");
  runs_ = true;
}

}  // namespace weft::detail
