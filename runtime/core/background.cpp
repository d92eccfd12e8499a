// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/background.hpp>

#include <utility>

namespace weft {

void run_in_background(executor_core& home, task<> work, const char* name) {
  run_in_background(home, detail::root_handle<void>(std::move(work)), name);
}

void run_in_background(executor_core& home, detail::root_handle<void> work, const char* name) {
  work->start(home, home.begin_background(), stop_token(), name);
}

}  // namespace weft
