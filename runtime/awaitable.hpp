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

}  // namespace weft::detail
