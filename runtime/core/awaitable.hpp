// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace weft::detail {

/// The awaiter of an awaitable: the result of its operator co_await, or the awaitable itself.
template <class Awaitable>
decltype(auto) get_awaiter(Awaitable&& item) {
  if constexpr (requires { std::forward<Awaitable>(item).operator co_await(); }) {
    return std::forward<Awaitable>(item).operator co_await();
  } else {
    return std::forward<Awaitable>(item);
  }
}

/// The type that co_await yields for an awaitable.
template <class Awaitable>
using await_result = decltype(get_awaiter(std::declval<Awaitable>()).await_resume());

/// A type that a task can co_await: a task, an operation of weft, the handle of a spawned task. A reference stands for
/// an lvalue, which is awaited in place.
template <class T>
concept is_awaitable = requires { typename await_result<T>; };

}  // namespace weft::detail
