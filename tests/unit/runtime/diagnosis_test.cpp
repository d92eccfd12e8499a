// SPDX-License-Identifier: Apache-2.0
// What a person sees of running tasks: dumps, warnings of stalls, traces.
#include <weft/runtime/io/signal.hpp>
#include <weft/runtime/metrics.hpp>
#include <weft/runtime/record_traces.hpp>
#include <weft/runtime/task_name.hpp>
#include <weft/runtime/trace_file.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <map>
#include <set>

#include "kit/child.hpp"
#include "kit/clock.hpp"
#include "kit/temporary_directory.hpp"
#include "runtime/support.hpp"
#include <nlohmann/json.hpp>

namespace weft {
namespace {

task<> wait_for_event(event& signal) { co_await signal.wait(); }

task<> outer_wait(event& signal) { co_await wait_for_event(signal); }

task<> deep(int depth, event& signal) {
  if (depth == 0) {
    co_await signal.wait();
  } else {
    co_await deep(depth - 1, signal);
  }
}

std::string line_with(const std::string& text, const std::string& word) {
  const std::size_t at = text.find(word);
  if (at == std::string::npos) return {};
  const std::size_t start = text.rfind('\n', at) + 1;
  return text.substr(start, text.find('\n', at) - start);
}

TEST(dump, shows_the_tree_of_tasks_with_what_each_waits_for_and_since_when) {
  test::simulated_executor home;
  std::string text;
  home.run([&]() -> task<> {
    event signal;
    const auto body = [&](scope& children) -> task<> {
      children.spawn(outer_wait(signal), "first");
      children.spawn(outer_wait(signal));
      co_await sleep_for(3s);
      text = home.dump();
      signal.set();
    };
    co_await with_scope(on_failure::stop_siblings, body, "peers");
  }());
  const std::string named = line_with(text, "first");
  EXPECT_NE(named.find("- [peers] first: outer_wait (diagnosis_test.cpp:"), std::string::npos) << text;
  EXPECT_NE(named.find(" > wait_for_event ("), std::string::npos) << text;
  EXPECT_NE(named.find("; 3.000 s on an event"), std::string::npos) << text;
  EXPECT_EQ(named.rfind("  - ", 0), 0U) << "a child stands below its parent\n" << text;
  EXPECT_NE(line_with(text, "lambda").find("ready or running"), std::string::npos) << text;
  EXPECT_EQ(line_with(text, "lambda").rfind("- ", 0), 0U) << text;
}

TEST(dump, says_that_a_task_waits_for_those_of_its_scope) {
  test::simulated_executor home;
  std::string text;
  event signal;
  const auto look = [&]() -> task<> {
    co_await sleep_for(1s);
    text = home.dump();
    signal.set();
  };
  test::run_scope(home, [&](scope& children) {
    children.spawn(look());
    children.spawn(outer_wait(signal));
  });
  EXPECT_NE(text.find("its scope has 2 tasks"), std::string::npos) << text;
}

TEST(dump, of_a_chain_of_a_hundred_thousand_tasks_uses_no_stack_and_stays_readable) {
  test::on_a_small_stack([] {
    executor home;
    std::string text;
    event signal;
    test::run_scope(home, [&](scope& children) -> task<> {
      children.spawn(deep(100'000, signal));
      while (home.dump().find("on an event") == std::string::npos) co_await yield();
      text = home.dump();
      signal.set();
      while (children.size() != 0) co_await yield();
    });
    EXPECT_LT(text.size(), 4096U);
    EXPECT_NE(text.find(" more; "), std::string::npos) << text;
  });
}

TEST(dump, is_written_on_the_signal_that_was_named_and_the_task_goes_on) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const int before = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
  ::dup2(ends[1], STDERR_FILENO);
  ::close(ends[1]);
  descriptor output(ends[0], system_calls::kernel());
  std::string text;
  {
    executor home({.dump_on_signal = SIGUSR1});
    const auto read_a_dump = [&]() -> task<> {
      ::raise(SIGUSR1);
      while (text.empty()) {
        const int events = co_await detail::io_wait(io_kind::readable, output);
        EXPECT_GT(events, 0);
        std::array<char, 4096> bytes;
        const ssize_t count = ::read(output.fd(), bytes.data(), bytes.size());
        if (count > 0) text.append(bytes.data(), static_cast<std::size_t>(count));
      }
    };
    home.run(read_a_dump());
    text.clear();
    home.run(read_a_dump());  // also in a second run
  }
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  EXPECT_NE(text.find("on a wait for readiness"), std::string::npos) << text;
}

task<> send_away(executor& other, task<> work) { co_await run_on(other, std::move(work)); }

TEST(dump, on_a_signal_is_of_all_executors_that_named_it_whichever_hears_it) {
  const test::report_list reports;
  executor_options options{.dump_on_signal = SIGUSR1};
  executor_group_options others{.size = 2};
  others.each = options;
  std::set<std::string> seen;
  {
    executor_group group(others);
    executor home(options);
    executor deaf;                                    // that did not name it
    const auto note = [&](const std::string& text) {  // the first of these names that is in it
      for (const char* const name : {"here: ", "outer_wait", "deep"}) {
        if (text.find(name) != std::string::npos) return void(seen.insert(name));
      }
    };
    event first;
    event second;
    test::run_scope(home, [&](scope& children) -> task<> {
      children.spawn(send_away(group[0], outer_wait(first)), "here");
      children.spawn(send_away(group[1], deep(0, second)), "here");
      while (seen.size() < 3) {  // until all of them run
        ::kill(::getpid(), SIGUSR1);
        co_await yield();
        for (const auto& each : reports.take()) note(each.text);
      }
      group[0].post([&] { first.set(); });
      group[1].post([&] { second.set(); });
    });
  }
  EXPECT_EQ(seen.size(), 3U);
}

TEST(dump, on_a_signal_is_no_end_of_the_program_while_any_executor_wants_it) {
  const test::report_list reports;
  executor_options options{.dump_on_signal = SIGUSR1};
  std::optional<executor> first(std::in_place, options);
  executor second(options);
  first.reset();
  second.run([&]() -> task<> {
    ::kill(::getpid(), SIGUSR1);
    const auto told = co_await test::next_report(reports);
    EXPECT_EQ(told.kind, report_kind::dump);
    EXPECT_TRUE(told.text.starts_with("weft: executor on ")) << told.text;
  }());
}

task<> take(test::manual_clock& time, duration how_long) {
  time.advance(how_long);
  co_return;
}

TEST(stall, is_reported_with_the_names_and_the_origin_of_the_task_that_took_longest) {
  test::manual_clock time;
  test::report_list reports;
  executor home({.stall_limit = 10ms, .clock = &time});
  const auto body = [&](scope& children) -> task<> {
    children.spawn(take(time, 30ms), "hog");
    children.spawn(take(time, 5ms), "modest");
    co_return;
  };
  home.run(with_scope(on_failure::stop_siblings, body, "peers"));
  const auto all = reports.take();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].kind, report_kind::stall);
  EXPECT_EQ(all[0].task, "hog");
  EXPECT_EQ(all[0].scope, "peers");
  EXPECT_EQ(all[0].stall.value().turn, 35ms);
  EXPECT_EQ(all[0].stall.value().longest, 30ms);
  EXPECT_NE(detail::name_and_place(all[0].origin).find("diagnosis_test.cpp"), std::string::npos);
  EXPECT_EQ(home.statistics().stalls, 1U);
}

TEST(stall, is_not_reported_for_turns_within_the_limit_nor_without_one) {
  for (const duration limit : {duration(10ms), duration::zero()}) {
    test::manual_clock time;
    const test::report_list reports;
    executor home({.stall_limit = limit, .clock = &time});
    home.run(take(time, limit == duration::zero() ? duration(1h) : limit));
    EXPECT_TRUE(reports.take().empty());
  }
}

TEST(stall, without_a_handler_is_a_line_on_the_standard_error_stream) {
  test::manual_clock time;
  executor home({.stall_limit = 1ms, .clock = &time});
  testing::internal::CaptureStderr();
  home.run(take(time, 20ms));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("weft: a turn took 20.0 ms; one task ran for 20.0 ms of it; task "), std::string::npos) << text;
  EXPECT_NE(text.find("(diagnosis_test.cpp:"), std::string::npos) << text;
}

// What a trace is told, as lists.
class recorder final : public trace_sink, private test::immovable {
 public:
  recorder() { set_trace(this); }
  ~recorder() { set_trace(nullptr); }

  void began(trace_track track, const void* item, std::string_view name) noexcept override {
    const std::lock_guard lock(mutex_);
    names[track].insert(std::string(name));
    EXPECT_TRUE(open_.insert({track, item}).second) << name << " began twice";
  }
  void ended(trace_track track, const void* item) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(open_.erase({track, item}), 1U);
  }
  void ran(std::string_view name, time_point start, time_point end) noexcept override {
    const std::lock_guard lock(mutex_);
    EXPECT_LE(start, end);
    ran_names.insert(std::string(name));
  }
  [[nodiscard]] std::size_t open() const { return open_.size(); }

  std::map<trace_track, std::set<std::string>> names;
  std::set<std::string> ran_names;

 private:
  std::mutex mutex_;
  std::set<std::pair<trace_track, const void*>> open_;
};

task<int> square(int number) {
  co_await sleep_for(1us);
  const auto multiply = [number] { return number * number; };
  co_return co_await offload(multiply);
}

task<> squares() { co_await when_all(square(2), square(3)); }

TEST(trace, tells_the_beginning_and_the_end_of_every_task_and_operation_by_name) {
  recorder trace;
  test::run(squares());
  EXPECT_EQ(trace.open(), 0U);
  EXPECT_TRUE(trace.names[trace_track::tasks].contains("squares"));
  EXPECT_TRUE(trace.names[trace_track::tasks].contains("square")) << "not the wrapper's name";
  EXPECT_TRUE(trace.names[trace_track::operations].contains("a time"));
  EXPECT_TRUE(trace.names[trace_track::operations].contains("an offloaded function"));
  EXPECT_TRUE(trace.ran_names.contains("square"));
}

TEST(trace, ends_the_operations_that_are_stopped) {
  recorder trace;
  event never;
  test::run(test::run_for_turns(1, wait_for_event(never)));
  test::run(test::run_for_turns(0, wait_for_event(never)));  // stopped before it begins
  EXPECT_EQ(trace.open(), 0U);
}

nlohmann::json events_in(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file).at("traceEvents");
}

std::set<std::string> names_in(const std::string& path) {
  std::set<std::string> names;
  for (const auto& item : events_in(path)) {
    if (item.contains("name")) names.insert(item.at("name").get<std::string>());
  }
  return names;
}

TEST(trace_file, is_json_in_which_every_beginning_has_its_end) {
  const test::temporary_directory place;
  const std::string path = place / "trace";
  {
    trace_file trace(path);
    executor home;
    home.run(squares());
    detail::current_trace()->happened(trace_track::connections, &home, "a rail was lost: \"cable\"");
    trace.close();
    home.run(squares());  // after the end, without effect
  }
  std::map<std::pair<std::string, std::string>, int> open;
  std::set<std::string> titles;
  for (const auto& item : events_in(path)) {
    const std::string phase = item.at("ph");
    if (phase == "M") titles.insert(item.at("args").at("name").get<std::string>());
    if (phase == "b") ++open[{item.at("cat"), item.at("id")}];
    if (phase == "e") --open[{item.at("cat"), item.at("id")}];
    EXPECT_TRUE(phase != "X" || item.at("dur").get<double>() >= 0.0);
  }
  EXPECT_FALSE(open.empty());
  for (const auto& [item, count] : open) EXPECT_EQ(count, 0) << item.first << ' ' << item.second;
  EXPECT_TRUE(names_in(path).contains("square"));
  EXPECT_TRUE(names_in(path).contains("a rail was lost: \"cable\""));
  for (const char* title : {"executors", "tasks", "operations", "registrations", "connections"})
    EXPECT_TRUE(titles.contains(title));
}

TEST(trace_file, is_no_file_of_a_child_of_fork) {
  const test::temporary_directory place;
  const std::string path = place / "trace";
  trace_file trace(path);
  test::run(squares());
  const auto pause = []() -> task<> { co_await yield(); };
  const auto work = [&] {  // on this thread alone
    for (int i = 0; i < 1000; ++i) test::run(pause());
    return 0;
  };
  EXPECT_EQ(test::end_of(test::fork_for(work)), 0);
  trace.close();
  EXPECT_TRUE(names_in(path).contains("square"));
}

TEST(trace_file, that_cannot_be_created_or_written_says_so) {
  EXPECT_EQ(test::code_thrown_by([] { trace_file trace("/nowhere/trace.json"); }),
            std::error_code(ENOENT, std::system_category()));
  const auto fill_the_disk = [] {
    trace_file trace("/dev/full");
    test::run(squares());
    trace.close();
  };
  EXPECT_EQ(test::code_thrown_by(fill_the_disk), std::error_code(ENOSPC, std::system_category()));
}

TEST(trace_file, is_the_only_one_at_a_time) {
  const test::temporary_directory place;
  trace_file first(place / "trace");
  EXPECT_EQ(test::code_thrown_by([] { trace_file second("/dev/null"); }), errc::busy);
  first.close();
  trace_file second(place / "trace");
}

TASK_TEST(trace_file, may_begin_and_end_while_executors_run) {
  executor_group others(executor_group_options{.size = 2});
  const auto busy = [&]() -> task<> {
    for (int i = 0; i < 2000; ++i) co_await yield();
  };
  const auto record = []() -> task<> {
    for (int i = 0; i < 50; ++i) {
      trace_file trace("/dev/null");
      co_await yield();
      trace.close();
    }
  };
  auto first = run_on(others[0], busy());
  auto second = run_on(others[1], busy());
  co_await when_all(std::move(first), std::move(second), record());
}

class record_traces_test : public testing::Test {
 protected:
  [[nodiscard]] std::string path() const { return folder_ / "trace.json"; }
  [[nodiscard]] bool has_recorded() const { return folder_.has("trace.json"); }
  [[nodiscard]] bool is_recording() const { return folder_.has("trace.json.part"); }
  // Runs a task beside the recorder, and stops that.
  void run_beside_a_recorder(task<> body, duration longest = 1000s) {
    test::run_scope([&](scope& tasks) -> task<> {
      tasks.spawn(record_traces(signals_, path(), longest));
      ::raise(SIGUSR2);
      co_await std::move(body);
      tasks.request_stop();
    });
  }
  task<> until_it_records() {
    while (!is_recording()) co_await yield();
  }
  task<> until_it_has_recorded() {
    while (!has_recorded()) co_await yield();
  }

  signal_set signals_{SIGUSR2};

 private:
  const test::temporary_directory folder_;
};

TEST_F(record_traces_test, a_signal_records_what_a_running_program_does_until_the_next) {
  const auto body = [&]() -> task<> {
    co_await until_it_records();
    co_await squares();
    EXPECT_FALSE(has_recorded()) << "it has its name once it is whole";
    ::raise(SIGUSR2);
    co_await until_it_has_recorded();
    EXPECT_FALSE(is_recording());
    EXPECT_TRUE(names_in(path()).contains("square"));
  };
  run_beside_a_recorder(body());
}

TEST_F(record_traces_test, a_recording_ends_by_itself_and_the_next_takes_its_place) {
  const auto body = [&]() -> task<> {
    co_await until_it_has_recorded();
    std::filesystem::remove(path());
    ::raise(SIGUSR2);
    co_await until_it_has_recorded();
  };
  run_beside_a_recorder(body(), 1ms);
}

TEST_F(record_traces_test, a_stop_keeps_what_was_recorded) {
  const auto body = [&]() -> task<> {
    co_await until_it_records();
    co_await squares();
  };
  run_beside_a_recorder(body());
  EXPECT_TRUE(names_in(path()).contains("square"));
}

TEST_F(record_traces_test, a_file_that_cannot_be_written_is_a_warning_each_time) {
  const test::report_list reports;
  test::run_scope([&](scope& tasks) -> task<> {
    tasks.spawn(record_traces(signals_, "/nowhere/trace.json", 1000s));
    for (int i = 0; i < 2; ++i) {
      ::raise(SIGUSR2);
      const auto told = co_await test::next_report(reports);
      EXPECT_EQ(told.kind, report_kind::warning);
      EXPECT_TRUE(told.text.starts_with("create the trace /nowhere/trace.json.part")) << told.text;
    }
    tasks.request_stop();
  });
}

TEST(metrics, of_a_group_are_read_while_its_executors_are_busy) {
  std::atomic<bool> leave = false;
  std::atomic<bool> busy = false;
  executor_group group(executor_group_options{.size = 2});
  group[1].post([&] {
    busy = true;
    while (!leave) std::this_thread::yield();
  });
  while (!busy) std::this_thread::yield();
  metrics all;
  add_to(all, group, "kv");
  leave = true;
  const std::string text = all.text();
  EXPECT_NE(text.find("weft_executor_turns_total{executor=\"kv 0\"} "), std::string::npos) << text;
  EXPECT_NE(text.find("weft_executor_turns_total{executor=\"kv 1\"} "), std::string::npos) << text;
}

TEST(metrics, are_grouped_by_name_with_help_and_type_once) {
  executor one;
  executor other;
  one.run(squares());
  metrics all;
  add_to(all, one, "one");
  add_to(all, other, "a \"quoted\"\nname\\");
  const std::string text = all.text();
  EXPECT_NE(text.find("# HELP weft_executor_tasks_total Tasks started side by side.\n"
                      "# TYPE weft_executor_tasks_total counter\n"
                      "weft_executor_tasks_total{executor=\"one\"} 3\n"
                      "weft_executor_tasks_total{executor=\"a \\\"quoted\\\"\\nname\\\\\"} 0\n"),
            std::string::npos)
      << text;
}

TEST(metrics, of_any_words_are_a_page_that_prometheus_takes) {
  metrics all;
  all.gauge("lent", "What C:\\tmp\nholds \xff", metrics::label("peer", "\xc3\xa9\xf0\x9f\x90\x99 \xff\xc3"), 1);
  EXPECT_EQ(all.text(),
            "# HELP lent What C:\\\\tmp\\nholds \xef\xbf\xbd\n"
            "# TYPE lent gauge\n"
            "lent{peer=\"\xc3\xa9\xf0\x9f\x90\x99 \xef\xbf\xbd\xef\xbf\xbd\"} 1\n");
  const auto replaced = [](std::string_view bytes) {
    return metrics::label("a", bytes).find("\xef\xbf\xbd") != std::string::npos;
  };
  for (const std::string_view wrong : {"\x80", "\xc0\xaf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                                       "\xf4\x90\x80\x80", "\xf5\x80\x80\x80"}) {
    EXPECT_TRUE(replaced(wrong)) << wrong;
  }
  for (const std::string_view right :
       {"\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_FALSE(replaced(right)) << right;
  }
}

TEST(task_name, is_the_function_without_what_compilers_print_around_it) {
  EXPECT_EQ(detail::function_name("weft::task<> serve(weft::net::connection)"), "serve");
  EXPECT_EQ(detail::function_name("weft::task<T> a::read_all(T, int) [with T = std::vector<int>]"), "a::read_all");
  EXPECT_EQ(detail::function_name("task<int> weft::(anonymous namespace)::square(int)"), "square");
  EXPECT_EQ(detail::function_name("weft::task<> {anonymous}::f()"), "f");
  EXPECT_EQ(detail::function_name("main()::<lambda(weft::scope&)>"), "main::lambda");
  EXPECT_EQ(detail::function_name("auto main()::(anonymous class)::operator()() const"), "main::lambda");
  EXPECT_EQ(detail::function_name("weft::task<std::tuple<int, char>> net::connection::close()"),
            "net::connection::close");
}

}  // namespace
}  // namespace weft
