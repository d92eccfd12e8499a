// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace weft::detail {

/// The awaiter of something that can stand behind co_await: itself, or what its operator co_await returns.
template <class Awaitable>
decltype(auto) get_awaiter(Awaitable&& item) {
  if constexpr (requires { std::forward<Awaitable>(item).operator co_await(); }) {
    return std::forward<Awaitable>(item).operator co_await();
  } else {
    return std::forward<Awaitable>(item);
  }
}

/// What co_await yields for it.
template <class Awaitable>
using await_result = decltype(get_awaiter(std::declval<Awaitable>()).await_resume());

/// Whether a task can co_await it: a task, an operation of weft, the handle of a spawned task. A reference stands for
/// an lvalue, which is awaited in its place.
template <class T>
concept is_awaitable = requires { typename await_result<T>; };

}  // namespace weft::detail
