// SPDX-License-Identifier: Apache-2.0
// What a program is told that no caller of its is: failures of tasks that are only reported, warnings, dumps, the end.
#include <weft/runtime/line_limit.hpp>
#include <weft/runtime/task_name.hpp>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "kit/child.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

task<> fail_in_words() {
  co_await yield();
  throw std::runtime_error("the disk is full");
}

task<> fail_without_words() {
  co_await yield();
  throw 7;
}

// A scope of this task, under these names.
template <class Listener>
void run_in_scope(Listener listener, task<> child, const char* name = nullptr, const char* scope_name = "") {
  const auto body = [&](scope& children) -> task<> {
    children.spawn(std::move(child), name);
    co_return;
  };
  test::run(with_scope(listener, body, scope_name));
}

// The only report; one without anything if there is another number of them.
test::report_list::item only_one(const test::report_list& reports) {
  const auto all = reports.take();
  EXPECT_EQ(all.size(), 1U);
  return all.size() == 1 ? all[0] : test::report_list::item();
}

TEST(report, of_a_failure_names_the_task_and_the_scope_and_has_the_exception) {
  const test::report_list reports;
  run_in_scope(on_failure::report, fail_in_words(), "first", "peers");
  const auto one = only_one(reports);
  EXPECT_EQ(one.kind, report_kind::failure);
  EXPECT_EQ(one.text, "the disk is full");
  EXPECT_EQ(one.task, "first");
  EXPECT_EQ(one.scope, "peers");
  EXPECT_EQ(detail::function_name(one.origin), "fail_in_words");
  EXPECT_THROW(std::rethrow_exception(one.failure), std::runtime_error);
  EXPECT_EQ(one.line, "task [peers] first: " + detail::name_and_place(one.origin) + " failed: the disk is full");
}

TEST(report, of_a_failure_comes_without_names_where_none_were_given) {
  const test::report_list reports;
  run_in_scope(on_failure::report, fail_without_words());
  const auto one = only_one(reports);
  EXPECT_EQ(one.line, "task " + detail::name_and_place(one.origin) +
                          " failed: an exception that does not derive from std::exception");
  EXPECT_THROW(std::rethrow_exception(one.failure), int);
}

TEST(report, of_a_failure_goes_to_the_listener_that_the_scope_was_given) {
  const test::report_list reports;
  std::vector<std::string> told;
  const auto note = [&told](const report& what) noexcept {
    EXPECT_EQ(what.kind, report_kind::failure);
    EXPECT_THROW(std::rethrow_exception(what.failure), std::runtime_error);
    told.push_back(std::string(what.scope) + "/" + std::string(what.task) + ": " + std::string(what.text));
  };
  int others = 0;
  const auto body = [&others](scope& children) -> task<> {
    children.spawn(fail_in_words(), "first");
    const auto go_on = [&others]() -> task<> {
      for (int i = 0; i < 3; ++i) co_await yield();
      ++others;
    };
    children.spawn(go_on);
    co_return;
  };
  test::run(with_scope(note, body, "peers"));
  EXPECT_EQ(told, std::vector<std::string>{"peers/first: the disk is full"});
  EXPECT_EQ(others, 1);
  EXPECT_TRUE(reports.take().empty());
}

TEST(report, of_a_failure_can_be_passed_on_by_the_listener_of_its_scope) {
  const test::report_list reports;
  run_in_scope(send_report, fail_without_words(), "first", "peers");
  const auto one = only_one(reports);
  EXPECT_EQ(one.task, "first");
  EXPECT_THROW(std::rethrow_exception(one.failure), int);
}

TEST(report, of_a_failure_lets_the_listener_start_the_task_anew_or_stop_the_others) {
  scope* peers = nullptr;
  int failures = 0;
  const auto serve = [&](scope& children) -> task<> {
    peers = &children;
    children.spawn(fail_in_words());
    children.spawn(sleep_for(duration::max()));
    co_return;
  };
  test::run([&]() -> task<> {
    // A temporary, which the scope keeps.
    auto peers_end = with_scope(
        [&](const report&) noexcept {
          if (++failures < 3) {
            peers->spawn(fail_in_words());
          } else {
            peers->request_stop();
          }
        },
        serve);
    co_await std::move(peers_end);
  }());
  EXPECT_EQ(failures, 3);
}

[[maybe_unused]] constexpr auto may_throw = [](const report&) {};
static_assert(!failure_listener<decltype(may_throw)&>, "nobody could be told of what a listener throws");
static_assert(!failure_listener<std::function<void(const report&)>>, "a temporary that owns something would dangle");

TEST(report, says_nothing_of_failures_that_somebody_is_told_and_of_tasks_that_were_stopped) {
  const test::report_list reports;
  EXPECT_THROW(run_in_scope(on_failure::stop_siblings, fail_in_words()), std::runtime_error);
  test::run(with_scope(on_failure::report, [&](scope& children) -> task<> {
    children.spawn(sleep_for(duration::max()));
    co_await yield();
    children.request_stop();
  }));
  EXPECT_TRUE(reports.take().empty());
}

TEST(report, without_a_handler_is_one_line_on_the_standard_error_stream) {
  testing::internal::CaptureStderr();
  run_in_scope(on_failure::report, fail_in_words(), "first", "peers");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(text.starts_with("weft: task [peers] first: fail_in_words (report_test.cpp:")) << text;
  EXPECT_TRUE(text.ends_with(") failed: the disk is full\n")) << text;

  testing::internal::CaptureStderr();
  send_report({.text = "the pool is empty"});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "weft: the pool is empty\n");
}

TEST(line_limit, lets_a_seconds_first_lines_through_and_counts_the_others) {
  using std::chrono_literals::operator""s;
  line_limit limit;
  time_point now = clock::steady().now();
  for (unsigned i = 0; i < line_limit::lines_a_second; ++i) EXPECT_EQ(limit.next(now), 0u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(limit.next(now), std::nullopt);
  now += 1s;
  EXPECT_EQ(limit.next(now), 1000u);
  EXPECT_EQ(limit.next(now), 0u);
}

// In a child, whose lines of this second no other test needs.
TEST(report, of_failures_without_end_are_written_a_few_a_second_without_a_handler) {
  const auto flood = [] {
    std::FILE* const written = std::tmpfile();
    ::dup2(::fileno(written), STDERR_FILENO);
    report failure;
    failure.kind = report_kind::failure;
    failure.text = "a peer's";
    const time_point begin = clock::steady().now();
    for (int i = 0; i < 100'000; ++i) send_report(failure);
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(clock::steady().now() - begin).count();
    std::rewind(written);
    long lines = 0;
    for (int each = std::fgetc(written); each != EOF; each = std::fgetc(written)) lines += each == '\n' ? 1 : 0;
    // With a line in each second that says how many were left out.
    const long most = (seconds + 1) * (line_limit::lines_a_second + 1);
    std::_Exit(lines <= most ? 0 : 1);
  };
  EXPECT_EXIT(flood(), testing::ExitedWithCode(0), "");
}

// An operation that warns.
class warning_operation final : public detail::operation_base {
 public:
  void await_resume() const noexcept {}

 private:
  void begin() override {
    warn("this takes long");
    finish();
  }
  void cancel() noexcept override { finish(); }
};

task<> await_a_warning() { co_await warning_operation(); }
task<> await_it_further_out() { co_await await_a_warning(); }

TEST(report, of_an_operations_warning_names_the_task_that_waits) {
  const test::report_list reports;
  run_in_scope(on_failure::stop_siblings, await_it_further_out(), "second", "peers");
  const auto one = only_one(reports);
  EXPECT_EQ(one.kind, report_kind::warning);
  EXPECT_EQ(one.line, "this takes long; task [peers] second: " + detail::name_and_place(one.origin));
  EXPECT_EQ(detail::function_name(one.origin), "await_a_warning");
}

TEST(report, comes_before_the_program_ends_for_the_sake_of_memory) {
  const auto misuse = [] {
    class handler final : public report_handler {
      void handle(const report& what) noexcept override {
        if (what.kind == report_kind::fatal) std::fprintf(stderr, "a log of one's own: %s\n", to_string(what).c_str());
      }
    };
    static handler own;
    set_report_handler(&own);
    detail::terminate_because("a mishap");
  };
  EXPECT_DEATH(misuse(), "^a log of one's own: a mishap\n");
}

// The setting is read once, so each is tried in a process of its own.
class report_setting_test : public testing::Test {
 protected:
  report_setting_test() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~report_setting_test() override { GTEST_FLAG_SET(death_test_style, "fast"); }

  // Reports one of each kind with this setting, or without any, and leaves.
  static void send_all_and_exit(const char* setting) {
    setting != nullptr ? ::setenv("WEFT_LOG", setting, 1) : ::unsetenv("WEFT_LOG");
    set_report_handler(nullptr);
    send_report({.kind = report_kind::failure, .text = "one"});
    send_report({.kind = report_kind::stall, .text = "two"});
    send_report({.kind = report_kind::warning, .text = "three"});
    send_report({.kind = report_kind::change, .text = "a change"});
    send_report({.kind = report_kind::dump, .text = "four\n"});
    send_report({.kind = report_kind::fatal, .text = "five"});
    std::_Exit(0);
  }
};

TEST_F(report_setting_test, writes_everything_by_default) {
  const char* const all = "^weft: a task failed: one\nweft: two\nweft: three\nweft: a change\nfour\nweft: five\n$";
  EXPECT_EXIT(send_all_and_exit(nullptr), testing::ExitedWithCode(0), all);
  EXPECT_EXIT(send_all_and_exit("all"), testing::ExitedWithCode(0), all);
}

TEST_F(report_setting_test, chooses_kinds_and_never_silences_the_end_of_the_program) {
  EXPECT_EXIT(send_all_and_exit("none"), testing::ExitedWithCode(0), "^weft: five\n$");
  EXPECT_EXIT(send_all_and_exit("failure,dump"), testing::ExitedWithCode(0),
              "^weft: a task failed: one\nfour\nweft: five\n$");
  EXPECT_EXIT(send_all_and_exit("change"), testing::ExitedWithCode(0), "^weft: a change\nweft: five\n$");
}

TEST_F(report_setting_test, refuses_a_kind_that_there_is_none_of_and_writes_everything) {
  EXPECT_EXIT(
      send_all_and_exit("failure,loud"), testing::ExitedWithCode(0),
      "^weft: WEFT_LOG=failure,loud: unknown kind \"loud\"; use all, none, or a comma-separated list of failure, "
      "stall, warning, change and dump; writing all\nweft: a task failed: one\nweft: two\n");
}

class slow_handler final : public report_handler {
 public:
  std::atomic<bool> inside = false;
  std::atomic<bool> may_leave = false;
  std::atomic<bool> has_left = false;

 private:
  void handle(const report&) noexcept override {
    inside = true;
    while (!may_leave) std::this_thread::yield();
    has_left = true;
  }
};

TEST(report, of_another_thread_at_a_fork_does_not_keep_the_child_from_setting_a_handler) {
  slow_handler slow;
  report_handler* const before = set_report_handler(&slow);
  const std::jthread reporting([] { send_report({.text = "from elsewhere"}); });
  while (!slow.inside) std::this_thread::yield();
  const auto replace = [&] { return set_report_handler(nullptr) == &slow ? 0 : 1; };
  EXPECT_EQ(test::end_of(test::fork_for(replace)), 0);
  slow.may_leave = true;
  set_report_handler(before);
}

TEST(report, goes_to_the_former_handler_no_more_once_another_is_set) {
  slow_handler slow;
  report_handler* const before = set_report_handler(&slow);
  const std::jthread reporting([] { send_report({.text = "from elsewhere"}); });
  while (!slow.inside) std::this_thread::yield();
  const std::jthread letting_go([&] {
    std::this_thread::yield();
    slow.may_leave = true;
  });
  EXPECT_EQ(set_report_handler(before), &slow);
  EXPECT_TRUE(slow.has_left) << "the former handler could not be destroyed";
}

}  // namespace
}  // namespace weft
