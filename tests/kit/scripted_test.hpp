// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/scope.hpp>
#include <weft/runtime/task.hpp>

#include <gtest/gtest.h>

#include <functional>

// Tests whose body is a coroutine and a member of the fixture, run by a function of the fixture (task_test.hpp: by an
// executor of its own). With TEST_F_TASK and TEST_P_TASK that is run(script), and a scope, `tasks`, is for what goes on
// beside it.
namespace weft::test {

// What TEST_P() does with a test.
template <class Fixture, class Test>
int add_test_p(const char* suite, const char* name, const char* file, int line) {
  const testing::internal::CodeLocation here(file, line);
  testing::UnitTest::GetInstance()
      ->parameterized_test_registry()
      .GetTestSuitePatternHolder<Fixture>(suite, here)
      ->AddTestPattern(suite, name, new testing::internal::TestMetaFactory<Test>(), here);
  return 0;
}

/// A coroutine that is a part of a test, with these parameters. What runs it is compiled once for all tests of a
/// source.
template <class... Parameters>
using test_script = std::function<task<>(Parameters...)>;

/// A coroutine without parameters that runs `script(tasks)`, another one.
inline test_script<> with_tasks(const test_script<scope&>& script) {
  return [script]() -> task<> { co_await with_scope(on_failure::stop_siblings, script); };
}

}  // namespace weft::test

/// What calls the coroutine of a test: for the function of a fixture that runs it.
#define WEFT_SCRIPT [this](auto&&... arguments) { return this->script(arguments...); }

/// TEST_F whose body is a coroutine with these parameters, run by what follows, in which WEFT_SCRIPT is the coroutine.
#define TEST_F_SCRIPT(fixture, name, parameters, ...)                                                               \
  class fixture##_##name##_script : public fixture {                                                                \
   protected:                                                                                                       \
    ::weft::task<> script parameters;                                                                               \
  };                                                                                                                \
  GTEST_TEST_(fixture, name, fixture##_##name##_script, ::testing::internal::GetTypeId<fixture>()) { __VA_ARGS__; } \
  ::weft::task<> fixture##_##name##_script::script parameters

/// The same of TEST_P.
#define TEST_P_SCRIPT(suite, name, parameters, ...)                                                            \
  class GTEST_TEST_CLASS_NAME_(suite, name) : public suite {                                                   \
   public:                                                                                                     \
    ::weft::task<> script parameters;                                                                          \
    void TestBody() override { __VA_ARGS__; }                                                                  \
    static const int registered;                                                                               \
  };                                                                                                           \
  const int GTEST_TEST_CLASS_NAME_(suite, name)::registered =                                                  \
      ::weft::test::add_test_p<suite, GTEST_TEST_CLASS_NAME_(suite, name)>(#suite, #name, __FILE__, __LINE__); \
  ::weft::task<> GTEST_TEST_CLASS_NAME_(suite, name)::script parameters

/// TEST_F and TEST_P whose body is a coroutine, run by run() of the fixture, with a scope, `tasks`.
#define TEST_F_TASK(fixture, name) \
  TEST_F_SCRIPT(fixture, name, ([[maybe_unused]] ::weft::scope & tasks), run(::weft::test::with_tasks(WEFT_SCRIPT)))
#define TEST_P_TASK(suite, name) \
  TEST_P_SCRIPT(suite, name, ([[maybe_unused]] ::weft::scope & tasks), run(::weft::test::with_tasks(WEFT_SCRIPT)))
