// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/asio.hpp>
#include <weft/runtime/sync_wait.hpp>

#include <asio/experimental/awaitable_operators.hpp>

#include <sys/eventfd.h>

#include "asio_run.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

using test::asio_tokens::as_tuple;
using test::asio_tokens::deferred;

task<int> number_in(duration time, int number) {
  co_await sleep_for(time);
  co_return number;
}
task<int> fail_in(duration time) {
  co_await sleep_for(time);
  throw error(errc::closed, "a test");
}
task<> throws() { co_await test::fail_after(1); }
task<> nothing() { co_return; }
task<> for_ever() { co_await sleep_for(duration::max()); }

// A value that cannot be empty.
class always_full {
 public:
  explicit always_full(int number) : number_(number) {}
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};
task<always_full> full(int number) {
  co_await yield();
  co_return always_full(number);
}

class asio_host_test : public testing::Test {
 protected:
  using local_socket = asio::local::stream_protocol::socket;

  asio::io_context io_;
  std::optional<asio_host> host_{io_};

  [[nodiscard]] std::pair<local_socket, local_socket> connected_pair() {
    std::pair<local_socket, local_socket> made{io_, io_};
    asio::local::connect_pair(made.first, made.second);
    return made;
  }
  void run_again() {
    io_.restart();
    io_.run();
  }
};

TEST_F(asio_host_test, completes_callbacks_with_what_the_operation_yields_and_never_inside_the_call) {
  int got = 0;
  host_->async(number_in(1ms, 7), [&](std::error_code failure, int number) {
    EXPECT_FALSE(failure);
    EXPECT_EQ(executor::current(), nullptr);
    got = number;
  });
  bool slept = false;
  host_->async(sleep_for(1us), [&](std::error_code failure) {
    EXPECT_FALSE(failure);
    slept = true;
  });
  EXPECT_EQ(got, 0);
  io_.run();
  EXPECT_EQ(got, 7);
  EXPECT_TRUE(slept);
}

TEST_F(asio_host_test, completes_use_awaitable_deferred_as_tuple_redirect_error_and_use_future) {
  test::run(io_, [&]() -> asio::awaitable<void> {
    EXPECT_EQ(co_await host_->async(number_in(1us, 1), asio::use_awaitable), 1);
    EXPECT_EQ(co_await host_->async(number_in(1us, 2), deferred)(asio::use_awaitable), 2);
    const auto [failure, number] = co_await host_->async(fail_in(1us), as_tuple(asio::use_awaitable));
    EXPECT_EQ(failure, make_error_code(errc::closed));
    EXPECT_EQ(number, 0);
    asio::error_code code;
    co_await host_->async(fail_in(1us), asio::redirect_error(asio::use_awaitable, code));
    EXPECT_EQ(code, make_error_code(errc::closed));
    const std::optional<always_full> value = co_await host_->async(full(3), asio::use_awaitable);
    EXPECT_EQ(value->number(), 3);
  }());
  auto future = host_->async(number_in(1us, 4), asio::use_future);
  run_again();
  EXPECT_EQ(future.get(), 4);
}

TEST_F(asio_host_test, keeps_the_words_of_an_error_in_a_result_and_any_exception_in_an_exception_ptr) {
  std::string words;
  host_->async(as_result(fail_in(1us)), [&](std::error_code failure, std::optional<result<int>> outcome) {
    EXPECT_FALSE(failure);
    words = outcome->error().what();
  });
  host_->spawn(throws(),
               [](std::exception_ptr failure) { EXPECT_THROW(std::rethrow_exception(failure), std::runtime_error); });
  io_.run();
  EXPECT_EQ(words, error(errc::closed, "a test").what());

  bool called = false;
  host_->async(test::fail_after(1), [&](std::error_code, int) { called = true; });
  EXPECT_THROW(run_again(), std::runtime_error);
  EXPECT_FALSE(called);
}

TEST_F(asio_host_test, what_use_awaitable_and_use_future_throw_has_the_words_and_asios_codes) {
  const std::string words = error(errc::closed, "a test").what();
  const auto caught = [&](const std::system_error& why) {
    EXPECT_EQ(why.code(), make_error_code(errc::closed));
    EXPECT_EQ(why.what(), words);
  };
  int thrown = 0;
  const auto expect = [&](asio::awaitable<int> failing) -> asio::awaitable<void> {
    try {
      co_await std::move(failing);
    } catch (const asio::system_error& why) {
      ++thrown;
      caught(why);
    }
  };
  asio::cancellation_signal cancel;
  test::run(io_, [&]() -> asio::awaitable<void> {
    co_await expect(host_->async(fail_in(1us), asio::use_awaitable));
    co_await expect(host_->async(fail_in(1us), asio::bind_cancellation_slot(cancel.slot(), asio::use_awaitable)));
    co_await expect(host_->async(fail_in(1us), asio::bind_executor(io_.get_executor(), asio::use_awaitable)));
    co_await expect(host_->spawn(fail_in(1us), asio::use_awaitable));
    asio::post(io_, [&] { asio::post(io_, [&] { cancel.emit(asio::cancellation_type::terminal); }); });
    auto stopped = host_->async(for_ever(), asio::bind_cancellation_slot(cancel.slot(), asio::use_awaitable));
    try {
      co_await std::move(stopped);
    } catch (const asio::system_error& why) {
      ++thrown;
      EXPECT_EQ(why.code(), asio::error::operation_aborted);
      EXPECT_NE(std::string(why.what()).find("sleep"), std::string::npos) << why.what();
    }
  }());
  EXPECT_EQ(thrown, 5);
  auto future = host_->async(fail_in(1us), asio::use_future);
  run_again();
  try {
    future.get();
    ADD_FAILURE() << "no exception";
  } catch (const asio::system_error& why) {
    caught(why);
  }
}

TEST_F(asio_host_test, what_use_awaitable_throws_may_be_any_exception) {
  const auto body = [&]() -> asio::awaitable<void> { co_await host_->async(throws(), asio::use_awaitable); };
  EXPECT_THROW(test::run(io_, body()), std::runtime_error);
}

TEST_F(asio_host_test, spawn_takes_operations_too) {
  bool slept = false;
  host_->spawn(sleep_for(1us), [&](const std::exception_ptr& failure) { slept = !failure; });
  io_.run();
  EXPECT_TRUE(slept);
}

// What docs/asio.md says of `a || b`: it is Asio's own, and waits for a success.
TEST_F(asio_host_test, the_or_operator_waits_for_a_success_unless_a_failure_is_made_a_result) {
  using namespace asio::experimental::awaitable_operators;
  const auto fail = [&]() -> asio::awaitable<void> {
    co_await asio::post(io_, asio::use_awaitable);
    throw std::runtime_error("of Asio's");
  };
  test::run(io_, [&]() -> asio::awaitable<void> {
    asio::steady_timer timer(io_, 1ms);
    const auto asios = co_await (fail() || timer.async_wait(asio::use_awaitable));
    EXPECT_EQ(asios.index(), 1U) << "without weft the timer is waited for, too";
    timer.expires_after(1ms);
    const auto thrown =
        co_await (host_->async(fail_in(1us), asio::use_awaitable) || timer.async_wait(asio::use_awaitable));
    EXPECT_EQ(thrown.index(), 1U);
    timer.expires_after(1h);
    const auto result = co_await (host_->async(fail_in(1us), as_tuple(asio::use_awaitable)) ||
                                  timer.async_wait(as_tuple(asio::use_awaitable)));
    EXPECT_EQ(result.index(), 0U) << "the failure has stopped the timer";
    EXPECT_EQ(std::get<0>(std::get<0>(result)), make_error_code(errc::closed));
    std::string words;
    try {
      co_await host_->async(with_timeout(1h, fail_in(1us)), asio::use_awaitable);
    } catch (const std::system_error& why) {
      words = why.what();
    }
    EXPECT_EQ(words, error(errc::closed, "a test").what());
    const auto raced = co_await host_->async(when_any(number_in(1us, 3), sleep_for(1h)), asio::use_awaitable);
    EXPECT_EQ(std::get<0>(raced.values), 3);
  }());
}

TEST_F(asio_host_test, an_exception_of_a_handler_leaves_run_and_the_others_are_called_after_it) {
  int called = 0;
  for (int i = 0; i < 3; ++i) {
    host_->async(yield(), [&](std::error_code) {
      if (++called == 1) throw std::runtime_error("a handler");
    });
  }
  EXPECT_THROW(io_.run(), std::runtime_error);
  io_.run();
  EXPECT_EQ(called, 3);
}

TEST_F(asio_host_test, sleeps_in_the_io_context_while_nothing_happens) {
  host_.emplace(io_, executor_options{.policy = poll_policy::sleep});
  std::uint64_t before = 0;
  test::run(io_, [&]() -> asio::awaitable<void> {
    co_await host_->async(sleep_for(1ms), asio::use_awaitable);
    before = host_->executor().statistics().turns;
    co_await host_->async(sleep_for(20ms), asio::use_awaitable);
  }());
  EXPECT_LT(host_->executor().statistics().turns - before, 50U);
}

TEST_F(asio_host_test, a_cancellation_slot_stops_the_operation_with_operation_aborted) {
  asio::cancellation_signal cancel;
  std::optional<std::error_code> ended;
  host_->async(for_ever(), asio::bind_cancellation_slot(cancel.slot(), [&](std::error_code code) { ended = code; }));
  asio::post(io_, [&] { asio::post(io_, [&] { cancel.emit(asio::cancellation_type::terminal); }); });
  io_.run();
  EXPECT_EQ(ended, asio::error::operation_aborted);

  // Before it has begun.
  ended.reset();
  host_->async(for_ever(), asio::bind_cancellation_slot(cancel.slot(), [&](std::error_code code) { ended = code; }));
  cancel.emit(asio::cancellation_type::terminal);
  run_again();
  EXPECT_EQ(ended, asio::error::operation_aborted);
}

struct allocation_count {
  int outstanding = 0;
  int total = 0;
};

// Counts what it hands out.
template <class T>
struct counting_allocator {
  using value_type = T;
  allocation_count* all;

  explicit counting_allocator(allocation_count* count) : all(count) {}
  template <class U>
  counting_allocator(const counting_allocator<U>& other) : all(other.all) {}
  T* allocate(std::size_t count) {
    ++all->outstanding;
    ++all->total;
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* place, std::size_t count) {
    --all->outstanding;
    std::allocator<T>().deallocate(place, count);
  }
  template <class U>
  bool operator==(const counting_allocator<U>& other) const {
    return all == other.all;
  }
};

struct counted_handler {
  using allocator_type = counting_allocator<void>;
  using executor_type = asio::any_io_executor;
  allocation_count* all;
  asio::any_io_executor where;
  std::function<void()> then;

  [[nodiscard]] allocator_type get_allocator() const { return allocator_type(all); }
  [[nodiscard]] executor_type get_executor() const { return where; }
  void operator()(std::error_code) const { then(); }
};

TEST_F(asio_host_test, keeps_its_state_in_the_associated_allocators_memory_and_has_given_it_back_when_it_calls) {
  allocation_count all;
  int then = -1;
  // On the io_context's own executor the handler is called at once, so that nothing is stored for that.
  counted_handler handler{&all, io_.get_executor(), [&] { then = all.outstanding; }};
  host_->async(sleep_for(1us), std::move(handler));
  EXPECT_EQ(all.outstanding, 1);
  io_.run();
  EXPECT_EQ(then, 0);
  EXPECT_EQ(all.outstanding, 0);
  EXPECT_GE(all.total, 1);
}

TEST_F(asio_host_test, calls_the_handler_on_its_associated_executor_and_keeps_that_at_work) {
  asio::thread_pool elsewhere(1);
  std::thread::id there;
  asio::post(elsewhere, [&] { there = std::this_thread::get_id(); });
  std::thread::id called;
  host_->async(sleep_for(1ms),
               asio::bind_executor(elsewhere, [&](std::error_code) { called = std::this_thread::get_id(); }));
  io_.run();
  elsewhere.join();
  EXPECT_EQ(called, there);
  EXPECT_NE(called, std::this_thread::get_id());
}

TEST_F(asio_host_test, is_woken_by_other_threads) {
  channel<int> numbers(1);
  int sum = 0;
  const auto add = [&]() -> task<> {
    while (const auto number = co_await numbers.receive()) sum += *number;
  };
  host_->async(add(), asio::detached);
  const std::jthread other([&] {
    for (int i = 1; i <= 100; ++i) {
      while (!numbers.try_send(int(i))) std::this_thread::yield();
    }
    numbers.close();
  });
  io_.run();
  EXPECT_EQ(sum, 5050);
}

// A handler of which one move, counted down, throws.
struct fragile_handler {
  using allocator_type = counting_allocator<void>;
  allocation_count* all;
  int* moves_left;
  bool* called;

  fragile_handler(allocation_count& count, int& moves, bool& told) : all(&count), moves_left(&moves), called(&told) {}
  fragile_handler(const fragile_handler& other) : all(other.all), moves_left(other.moves_left), called(other.called) {
    if (--*moves_left == 0) throw std::runtime_error("a move");
  }
  [[nodiscard]] allocator_type get_allocator() const { return allocator_type(all); }
  void operator()(std::error_code) const { *called = true; }
};

TEST_F(asio_host_test, a_handler_whose_move_throws_is_an_exception_and_leaves_nothing_behind) {
  bool called = false;
  int failures = 0;
  for (int moves = 1; !called && moves < 100; ++moves) {
    allocation_count all;
    int left = moves;
    try {
      host_->async(sleep_for(1us), fragile_handler(all, left, called));
      run_again();
    } catch (const std::runtime_error&) {
      ++failures;
      left = 0;
      run_again();
    }
    EXPECT_EQ(all.outstanding, 0) << "move " << moves;
  }
  EXPECT_TRUE(called);
  EXPECT_GT(failures, 1);
}

TEST_F(asio_host_test, takes_tasks_from_other_threads) {
  auto guard = asio::make_work_guard(io_);
  std::thread runs([&] { io_.run(); });
  std::vector<std::future<int>> numbers;
  for (int i = 0; i < 100; ++i) numbers.push_back(host_->async(number_in(1us, i), asio::use_future));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(numbers[static_cast<std::size_t>(i)].get(), i);
  guard.reset();
  runs.join();
  host_.reset();  // on another thread: there is no work
}

TEST_F(asio_host_test, one_per_io_context_and_thread_work_side_by_side) {
  constexpr int many = 3;
  struct server {
    asio::io_context io;
    asio_host host{io};
    int sum = 0;
    std::thread thread;
  };
  std::array<server, many> servers;  // made and destroyed on this thread, run on theirs
  for (server& self : servers) {
    self.thread = std::thread([&self] {
      for (int i = 0; i < 100; ++i) {
        self.host.async(number_in(1us, i), [&self](std::error_code, int number) { self.sum += number; });
      }
      self.io.run();
    });
  }
  for (server& self : servers) self.thread.join();
  for (const server& self : servers) EXPECT_EQ(self.sum, 4950);
}

TEST_F(asio_host_test, its_end_stops_what_has_not_ended_and_queues_the_handlers) {
  std::optional<std::error_code> ended;
  bool undone = false;
  const auto work = [&]() -> task<> {
    const result<void> slept = co_await as_result(sleep_for(duration::max()));
    EXPECT_EQ(slept.error().code(), errc::canceled);
    undone = true;
    throw slept.error();
  };
  host_->async(work(), [&](std::error_code code) { ended = code; });
  io_.poll();
  host_.reset();
  EXPECT_TRUE(undone);
  EXPECT_FALSE(ended);
  run_again();
  EXPECT_EQ(ended, asio::error::operation_aborted);
}

TEST(asio_host_ends, before_or_after_its_io_context_and_without_ever_running) {
  bool undone = false;
  const auto work = [&]() -> task<> {
    const result<void> slept = co_await as_result(sleep_for(duration::max()));
    undone = !slept;
  };
  {
    auto io = std::make_unique<asio::io_context>();
    const auto host = std::make_unique<asio_host>(*io);
    const auto kept = std::make_shared<int>(0);
    host->async(work(), [kept](std::error_code) { FAIL() << "its io_context is gone"; });
    io->poll();
    io.reset();
    EXPECT_TRUE(undone);
    EXPECT_EQ(kept.use_count(), 1) << "the handler has been forgotten";
  }
  {
    asio::io_context io;
    const auto kept = std::make_shared<int>(0);
    {
      asio_host host(io);
      host.async(work(), [kept](std::error_code) {});
    }
    io.run();
    EXPECT_LE(kept.use_count(), 2);
  }
}

TEST_F(asio_host_test, its_end_leaves_an_exception_that_is_no_error_to_whoever_runs_the_io_context) {
  const auto work = []() -> task<> {
    const result<void> slept = co_await as_result(sleep_for(duration::max()));
    if (!slept) throw std::runtime_error("no error of weft");
  };
  bool called = false;
  host_->async(work(), [&](std::error_code) { called = true; });
  io_.poll();
  host_.reset();
  EXPECT_THROW(run_again(), std::runtime_error);
  EXPECT_FALSE(called);
}

TEST_F(asio_host_test, runs_what_was_posted_to_it_before_anything_else) {
  bool called = false;
  host_->executor().post([&called]() noexcept { called = true; });
  io_.run();
  EXPECT_TRUE(called);
}

TEST_F(asio_host_test, refuses_to_be_run_by_hand) {
  EXPECT_EQ(test::code_thrown_by([&] { host_->executor().run(nothing()); }), errc::wrong_thread);
}

TEST_F(asio_host_test, may_be_destroyed_by_a_handler) {
  bool called = false;
  host_->async(for_ever(), [&](std::error_code code) { called = code == asio::error::operation_aborted; });
  host_->async(sleep_for(1us), [&](std::error_code) { host_.reset(); });
  io_.run();
  EXPECT_TRUE(called);
}

TEST_F(asio_host_test, request_stop_stops_all) {
  int stopped = 0;
  for (int i = 0; i < 3; ++i) {
    host_->async(for_ever(), [&](std::error_code code) { stopped += code == asio::error::operation_aborted; });
  }
  host_->async(sleep_for(1us), [&](std::error_code) { host_->request_stop(); });
  io_.run();
  EXPECT_EQ(stopped, 3);
}

TEST_F(asio_host_test, spins_with_the_io_context_if_its_policy_says_so) {
  host_.emplace(io_, executor_options{.policy = poll_policy::spin});
  io_.run();  // there is nothing to do yet: it rests
  const std::uint64_t before = host_->executor().statistics().sleeps;
  int got = 0;
  host_->async(number_in(1ms, 7), [&](std::error_code, int number) { got = number; });
  run_again();
  EXPECT_EQ(got, 7);
  EXPECT_EQ(host_->executor().statistics().sleeps, before + 1) << "only when there is no work left";
}

TEST_F(asio_host_test, many_operations_leave_others_of_the_io_context_their_turn) {
  bool other = false;
  const auto busy = [&]() -> task<> {
    while (!other) co_await yield();
  };
  host_->async(busy(), asio::detached);
  asio::post(io_, [&] { asio::post(io_, [&] { other = true; }); });
  io_.run();
  EXPECT_TRUE(other);
}

TEST_F(asio_host_test, handlers_that_start_one_operation_after_another_starve_neither_the_kernel_nor_the_io_context) {
  constexpr int most = 100'000;
  const int fd = ::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
  ASSERT_GE(fd, 0);
  bool told = false;  // by the kernel alone
  bool other = false;
  const auto wait = [&]() -> task<> {
    descriptor source(fd, system_calls::kernel());
    detail::io_wait readable(io_kind::readable, source);
    told = co_await readable > 0;
  };
  host_->async(wait(), asio::detached);
  int count = 0;
  const std::function<void()> start_next = [&] {
    if (told && other) return;
    if (++count == most) return host_->request_stop();
    host_->async(nothing(), [&](std::error_code) { start_next(); });
  };
  start_next();
  asio::post(io_, [&] { asio::post(io_, [&] { other = true; }); });
  io_.run();
  EXPECT_TRUE(told);
  EXPECT_TRUE(other);
  EXPECT_LT(count, most);
}

TEST_F(asio_host_test, what_handlers_start_is_served_before_the_kernel_is_asked_for_more) {
  constexpr int operations = 800;
  int left = operations;
  std::uint64_t before = 0;
  const std::function<void()> start_next = [&] {
    if (left-- != 0) host_->async(nothing(), [&](std::error_code) { start_next(); });
  };
  host_->async(yield(), [&](std::error_code) {
    before = host_->executor().kernel_entries();
    start_next();
  });
  io_.run();
  EXPECT_LT(host_->executor().kernel_entries() - before, operations / 2U);
}

// Tasks that await Asio.

TEST_F(asio_host_test, a_task_awaits_operations_of_asio) {
  auto [a, b] = connected_pair();
  test::run(*host_, io_, [&]() -> task<> {
    asio::steady_timer timer(io_, 1ms);
    co_await timer.async_wait(use_weft);
    const std::size_t sent = co_await asio::async_write(a, asio::buffer("hello", 5), use_weft);
    EXPECT_EQ(sent, 5U);
    std::array<char, 16> bytes{};
    const std::size_t got = co_await b.async_read_some(asio::buffer(bytes), use_weft);
    EXPECT_EQ(std::string(bytes.data(), got), "hello");
    a.close();
    const result<std::size_t> end = co_await as_result(b.async_read_some(asio::buffer(bytes), use_weft));
    EXPECT_EQ(end.error().code(), std::error_code(asio::error::eof)) << end.error().what();
    asio::ip::tcp::resolver resolver(io_);
    const auto found = co_await resolver.async_resolve("127.0.0.1", "80", use_weft);
    EXPECT_EQ(found.begin()->endpoint().port(), 80);
    co_await asio::post(io_, use_weft);
  }());
}

TEST_F(asio_host_test, a_stop_of_the_task_cancels_the_operation_of_asio) {
  auto [a, b] = connected_pair();
  test::run(*host_, io_, [&]() -> task<> {
    std::array<char, 16> bytes{};
    const result<std::size_t> late =
        co_await as_result(with_timeout(1ms, b.async_read_some(asio::buffer(bytes), use_weft)));
    EXPECT_EQ(late.error().code(), errc::timed_out);
    EXPECT_EQ(co_await asio::async_write(a, asio::buffer("x", 1), use_weft), 1U);
    EXPECT_EQ(co_await b.async_read_some(asio::buffer(bytes), use_weft), 1U);
  }());
}

TEST_F(asio_host_test, its_end_stops_a_task_that_waits_for_asio) {
  auto [a, b] = connected_pair();
  std::error_code ended;
  const auto body = [&]() -> task<> {
    std::array<char, 16> bytes{};
    const result<std::size_t> got = co_await as_result(b.async_read_some(asio::buffer(bytes), use_weft));
    ended = got.error().code();
  };
  host_->spawn(body(), asio::detached);
  io_.poll();
  host_.reset();
  EXPECT_EQ(ended, errc::canceled);
  run_again();
}

// Only a move does not throw.
struct uncopyable_answer {
  uncopyable_answer() = default;
  uncopyable_answer(const uncopyable_answer&) { throw std::bad_alloc(); }
  uncopyable_answer(uncopyable_answer&&) noexcept = default;
  uncopyable_answer& operator=(uncopyable_answer&&) noexcept = default;
};

TEST_F(asio_host_test, an_operation_of_asio_whose_answer_cannot_be_copied_is_canceled) {
  std::error_code ended;
  const auto answer = [&](auto handler) {
    asio::post(io_, [handler = std::move(handler)]() mutable {
      const uncopyable_answer given;
      std::move(handler)(std::error_code(), given);
    });
  };
  const auto body = [&]() -> task<> {
    const auto got = co_await as_result(
        asio::async_initiate<const use_weft_t, void(std::error_code, uncopyable_answer)>(answer, use_weft));
    ended = got.error().code();
  };
  host_->spawn(body(), asio::detached);
  EXPECT_THROW(io_.run(), std::bad_alloc);
  io_.restart();
  io_.run_for(10s);
  EXPECT_EQ(ended, errc::canceled);
}

TEST_F(asio_host_test, an_operation_of_asio_that_is_forgotten_is_canceled) {
  auto other = std::make_unique<asio::io_context>();
  asio::steady_timer* const timer = new asio::steady_timer(*other, 1h);
  std::error_code ended;
  const auto body = [&]() -> task<> {
    const result<void> waited = co_await as_result(timer->async_wait(use_weft));
    ended = waited.error().code();
  };
  host_->spawn(body(), asio::detached);
  io_.poll();
  // The timer's handler is destroyed with its io_context; the timer itself must not outlive that.
  asio::post(io_, [&] {
    delete timer;
    other.reset();
  });
  run_again();
  EXPECT_EQ(ended, errc::canceled);
}

// Asio's side of "stop at step 1, 2, 3...": each time one more step has been made.
TEST_F(asio_host_test, a_slot_at_every_step_loses_no_completion) {
  for (int steps = 0;; ++steps) {
    asio::cancellation_signal cancel;
    int calls = 0;
    std::error_code ended;
    const auto work = [&]() -> task<> {
      for (int i = 0; i < 3; ++i) co_await yield();
      const auto nothing = [] {};
      co_await offload(nothing);
      co_await sleep_for(1us);
      asio::steady_timer timer(io_, 1us);
      co_await timer.async_wait(use_weft);
    };
    host_->async(work(), asio::bind_cancellation_slot(cancel.slot(), [&](std::error_code code) {
                   ++calls;
                   ended = code;
                 }));
    io_.restart();
    for (int i = 0; i < steps && calls == 0; ++i) io_.run_one();
    const bool over = calls != 0;
    cancel.emit(asio::cancellation_type::terminal);
    io_.run();
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(!ended || ended == asio::error::operation_aborted) << ended.message();
    if (over) break;
    ASSERT_LT(steps, 100'000);
  }
}

TEST_F(asio_host_test, sync_wait_in_a_handler_is_refused) {
  std::optional<std::error_code> code;
  host_->async(nothing(),
               [&](std::error_code) { code = test::code_thrown_by([&] { sync_wait(host_->executor(), nothing()); }); });
  io_.run();
  EXPECT_EQ(code, errc::wrong_thread);
}

TEST_F(asio_host_test, request_stop_leaves_what_is_started_after_it_alone) {
  std::vector<std::error_code> codes;
  const auto keep = [&](std::error_code code) { codes.push_back(code); };
  host_->async(for_ever(), keep);
  host_->async(for_ever(), [&](std::error_code code) {
    keep(code);
    host_->async(sleep_for(1us), keep);
  });
  io_.poll();
  host_->request_stop();
  host_->async(sleep_for(1us), [&](std::error_code code) {
    keep(code);
    host_->async(for_ever(), keep);
    host_->request_stop();
  });
  io_.run();
  ASSERT_EQ(codes.size(), 5U);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), asio::error::operation_aborted), 3);
  EXPECT_EQ(std::count(codes.begin(), codes.end(), std::error_code()), 2);
}

}  // namespace
}  // namespace weft
