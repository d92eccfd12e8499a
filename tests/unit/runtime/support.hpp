// SPDX-License-Identifier: Apache-2.0
// What the tests of the runtime share.
#pragma once

#include <weft/runtime/as_result.hpp>
#include <weft/runtime/executor_group.hpp>
#include <weft/runtime/io/io.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/run_on.hpp>
#include <weft/runtime/sync/channel.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/when_all.hpp>
#include <weft/runtime/when_any.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <sys/socket.h>

#include "../../sim/loose_task.hpp"
#include "kit/expect_failure.hpp"
#include "kit/report_list.hpp"
#include "kit/settle.hpp"
#include "kit/task_test.hpp"
#include "sanitized.hpp"

namespace weft {

using namespace std::chrono_literals;

namespace test {

/// How often this thread has called operator new; not counted in sanitizer builds.
std::size_t allocations() noexcept;

/// Runs `body` to its end on a thread with a stack of 256 KiB.
void on_a_small_stack(const std::function<void()>& body);

/// Runs a task or an operation, on an executor of its own if none is given: on the driver that the environment chooses.
template <detail::is_awaitable Operation>
auto run(executor& home, Operation operation) {
  return home.run(detail::as_task(std::move(operation)));
}
template <detail::is_awaitable Operation>
auto run(Operation operation) {
  executor home;
  return run(home, std::move(operation));
}

/// Runs `body(children)`, a task or a function, in a scope that the first failure stops.
template <class Body>
void run_scope(executor& home, Body body) {
  const auto as_task = [&](scope& children) -> task<> {
    if constexpr (std::is_void_v<std::invoke_result_t<Body&, scope&>>) {
      body(children);
      co_return;
    } else {
      co_await body(children);
    }
  };
  home.run(with_scope(on_failure::stop_siblings, as_task));
}
template <class Body>
void run_scope(Body body) {
  executor home;
  run_scope(home, std::move(body));
}

/// Runs these side by side, and stops them after so many turns.
template <class... Tasks>
task<> run_for_turns(int turns, Tasks... tasks) {
  co_await with_scope(on_failure::stop_siblings, [&](scope& children) -> task<> {
    (children.spawn(std::move(tasks)), ...);
    for (int i = 0; i < turns; ++i) co_await yield();
    children.request_stop();
  });
}

/// The code of what `body` throws on another thread.
template <class Body>
std::error_code code_thrown_elsewhere(Body&& body) {
  std::error_code code;
  std::thread([&] { code = code_thrown_by(body); }).join();
  return code;
}

/// Starts `body` in the next turn of this executor, and lets the test destroy it: in a program every task has an owner
/// that waits for it.
[[nodiscard]] sim::loose_task start_loosely(task<> body);
/// Starts it, and destroys it once it waits.
task<> destroyed_while_it_waits(task<> body);

/// Yields `value`, or throws a std::runtime_error, after so many turns.
task<int> number_after(int turns, int value);
task<int> fail_after(int turns);
/// Waits for ever, and takes its time to end once it was told to.
task<> stop_slowly(bool& ended);

/// The first of the reports that come, once there is one.
task<report_list::item> next_report(const report_list& reports);

/// Virtual time and a kernel without sockets: waiting makes the time pass at once. Waits for readiness, which is what
/// an executor starts for its pollers, look at the real descriptor.
class simulation final : public clock, public event_driver {
 public:
  [[nodiscard]] time_point now() noexcept override { return now_; }
  [[nodiscard]] duration elapsed() const noexcept { return now_ - time_point(); }
  /// What a task does takes so long.
  void advance(duration time) noexcept { now_ = later(now_, time); }
  [[nodiscard]] executor_options options() noexcept;

  [[nodiscard]] std::string_view name() const noexcept override { return "simulated"; }
  void attach_thread() override {}
  void start(io_operation& operation) noexcept override;
  void cancel(io_operation& operation) noexcept override;
  std::size_t poll(std::size_t budget) noexcept override;
  std::size_t wait(std::size_t budget, std::optional<duration> timeout) noexcept override;
  void wake() noexcept override {}
  [[nodiscard]] int try_now(io_operation&) noexcept override { return -EAGAIN; }
  [[nodiscard]] ssize_t try_receive(descriptor& source, msghdr& message) noexcept override;

 private:
  time_point now_{};
  std::vector<io_operation*> started_;
  std::vector<io_operation*> canceled_;
};

struct virtual_time {
  simulation world;
};
/// An executor on virtual time.
class simulated_executor : public virtual_time, public executor {
 public:
  simulated_executor() : executor(world.options()) {}
};

/// A test whose body is a task in a scope, `children`.
#define SCOPE_TEST(suite, name)                                         \
  ::weft::task<> suite##_##name##_body(::weft::scope& children);        \
  TEST(suite, name) { ::weft::test::run_scope(suite##_##name##_body); } \
  ::weft::task<> suite##_##name##_body([[maybe_unused]] ::weft::scope& children)

/// The result of a system call, which throws -errno.
int checked_call(int result, const char* what);

struct socket_pair {
  descriptor a;
  descriptor b;
};

/// Two connected sockets: through the loopback's TCP, or of AF_UNIX.
socket_pair tcp_pair(system_calls& calls = system_calls::kernel());
socket_pair unix_pair(system_calls& calls = system_calls::kernel());

/// One receive or send, as the event driver makes it: what the system call returned, or -errno.
task<int> receive_some(descriptor& where, std::span<std::byte> bytes);
task<int> send_some(descriptor& where, std::span<const std::byte> bytes);

/// All of it, in as many calls as it takes; throws errors.
task<> receive_all(descriptor& where, std::span<std::byte> bytes);
task<> send_all(descriptor& where, std::span<const std::byte> bytes);

}  // namespace test
}  // namespace weft
