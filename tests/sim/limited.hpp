// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <new>
#include <type_traits>

#include "kit/standard.hpp"

namespace weft::sim {

/// Awaits an operation, and stops it after a time unless that is 0.
template <class Operation>
auto limited(Operation operation, std::uint32_t stop_after_us) {
  using value = std::decay_t<detail::await_result<Operation>>;
  const auto body = [](Operation given, std::uint32_t time) -> task<result<value>> {
    try {
      if (time == 0) co_return co_await as_result(std::move(given));
      co_return co_await as_result(with_timeout(std::chrono::microseconds(time), std::move(given)));
    } catch (const std::bad_alloc& none) {
      co_return error(errc::no_memory, none.what());
    } catch (const std::exception& other) {
      co_return error(errc::invalid_argument, other.what());
    }
  };
  return body(std::move(operation), stop_after_us);
}

}  // namespace weft::sim
