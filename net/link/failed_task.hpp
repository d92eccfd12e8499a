// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>

#include <exception>
#include <utility>

namespace weft::net {

/// A task that throws `why` when it is awaited. Calls that yield a task report wrong arguments in this way, because a
/// caller that handles errors where it awaits (as_result()) expects none from the call itself.
template <class T>
task<T> failed_task(std::exception_ptr why) {
  std::rethrow_exception(std::move(why));
  co_await weft::detail::current_promise();  // makes this a coroutine
}

template <class T>
task<T> failed_task(errc code, const char* words) {
  throw error(code, words);
  co_await weft::detail::current_promise();  // makes this a coroutine
}

}  // namespace weft::net
