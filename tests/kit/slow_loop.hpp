// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>

#include <semaphore>

namespace weft::test {

/// A loop that drives an executor, and keeps whoever wakes it until it may go on.
class slow_loop final : public executor_core::outer_loop {
 public:
  void wake() noexcept override {
    entered.release();
    go_on.acquire();
  }
  std::binary_semaphore entered{0};
  std::binary_semaphore go_on{0};
};

}  // namespace weft::test
