// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/run_until_signal.hpp>

namespace weft::detail {

task<> signal_watch::wait(scope& tasks) {
  first_ = co_await signals_.next();
  if (drain()) co_await signals_.next();
  signals_.restore();
  tasks.request_stop();
}

}  // namespace weft::detail
