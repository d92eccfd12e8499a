// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/task.hpp>

namespace weft {

/// Runs `work` beside everything else on `home`, the executor of this thread; errc::wrong_thread on any other.
/// executor::run() returns only after the work has ended. The work must not throw. Dumps and traces show `name`, which
/// is a string literal or null.
void run_in_background(executor_core& home, task<> work, const char* name = nullptr);
/// Starts work that was allocated beforehand, so that the call allocates nothing.
void run_in_background(executor_core& home, detail::root_handle<void> work, const char* name = nullptr);

}  // namespace weft
