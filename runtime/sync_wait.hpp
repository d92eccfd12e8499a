// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/remote_call.hpp>
#include <weft/runtime/executor.hpp>

#include <utility>

namespace weft {

namespace detail {

/// Starts the call on `where`, and blocks this thread until it has ended.
void block_until_ended(remote_call_base& call, executor_core& where);

}  // namespace detail

/// Runs a task on an executor that runs on another thread, an executor_group's for instance, and blocks the calling
/// thread until the task has ended: for code that is not a coroutine.
///
///     executor_group group;
///     const int answer = sync_wait(group[0], compute());
///
/// Returns the task's value or throws its exception. errc::wrong_thread on a thread that runs an executor or an
/// asio_host's io_context, because such a thread must not block. Before the first run() of `where`, waits for that
/// run() as well. errc::executor_stopped after run() has returned, until it is called again, and if `where` is
/// destroyed before it runs the task.
template <class T>
T sync_wait(executor& where, task<T> what) {
  detail::remote_call<T> call(std::move(what));
  detail::block_until_ended(call, core_of(where));
  return call.take();
}

}  // namespace weft
