// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/task.hpp>

namespace weft {

/// Runs `work` beside everything else on `home`, which must be the executor of this thread: else errc::wrong_thread.
/// Throws std::bad_alloc if memory is short. executor::run() returns only after the work has ended. The work must not
/// throw. Dumps and traces show `name`, which is a string literal or null.
void run_in_background(executor_core& home, task<> work, const char* name = nullptr);
/// The same for work that was allocated beforehand, so that the call allocates nothing.
void run_in_background(executor_core& home, detail::root_handle<void> work, const char* name = nullptr);

}  // namespace weft
