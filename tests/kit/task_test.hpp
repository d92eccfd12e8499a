// SPDX-License-Identifier: Apache-2.0
// Tests whose body is a task. It runs to its end on an executor of its own, with the options that task_options() of the
// test's fixture says, if it has that.
#pragma once

#include <weft/runtime/executor.hpp>

#include "kit/scripted_test.hpp"

namespace weft {

inline executor_options task_options() { return {}; }

}  // namespace weft

#define TASK_TEST(suite, name)             \
  ::weft::task<> suite##_##name##_body();  \
  TEST(suite, name) {                      \
    ::weft::executor home(task_options()); \
    home.run(suite##_##name##_body());     \
  }                                        \
  ::weft::task<> suite##_##name##_body()

/// The body is a member of the fixture.
#define TASK_TEST_F(fixture, name) \
  TEST_F_SCRIPT(fixture, name, (), ::weft::executor home(task_options()); home.run(this->script()))
