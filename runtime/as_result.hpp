// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/awaitable.hpp>
#include <weft/runtime/result.hpp>
#include <weft/runtime/task.hpp>

#include <type_traits>
#include <utility>

namespace weft {

/// Awaits `operation` and yields its value or its error instead of throwing: `co_await as_result(peer.recv())`.
/// Exceptions other than weft::error still propagate.
template <class Operation>
task<result<std::decay_t<detail::await_result<Operation>>>> as_result(Operation operation) {
  try {
    if constexpr (std::is_void_v<detail::await_result<Operation>>) {
      co_await std::move(operation);
      co_return result<void>();
    } else {
      co_return co_await std::move(operation);
    }
  } catch (const error& failure) {
    co_return failure;
  }
}

}  // namespace weft
