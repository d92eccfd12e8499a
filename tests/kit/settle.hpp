// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/sleep.hpp>
#include <weft/runtime/task.hpp>

namespace weft::test {

/// Lets everything that can go on without the kernel do so.
[[nodiscard]] inline task<> settle() {
  for (int i = 0; i < 20; ++i) co_await yield();
}

}  // namespace weft::test
