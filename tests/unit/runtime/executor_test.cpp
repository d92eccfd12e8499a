// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/background.hpp>

#include <sys/eventfd.h>
#include <unistd.h>

#include <deque>

#include "kit/clock.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

task<> nothing() { co_return; }

// ---- running

TEST(executor, runs_one_task_after_another_and_returns_their_results) {
  executor home;
  EXPECT_EQ(home.run(test::number_after(0, 1)), 1);
  EXPECT_EQ(home.run(test::number_after(0, 2)), 2);
  EXPECT_EQ(executor::current(), nullptr);
}

TEST(executor, goes_on_after_a_task_that_threw) {
  executor home;
  EXPECT_THROW(home.run(test::fail_after(0)), std::runtime_error);
  home.run(nothing());
}

TEST(executor, a_run_ends_only_after_the_work_in_the_background) {
  bool ended = false;
  const auto closing = [&]() -> task<> {
    co_await sleep_for(1ms);
    ended = true;
  };
  test::run([&]() -> task<> {
    run_in_background(*executor_core::current(), closing());
    co_return;
  }());
  EXPECT_TRUE(ended);
}

TEST(executor, attachments_live_as_long_as_it_and_go_youngest_first) {
  static constexpr int first_key = 0;
  static constexpr int second_key = 0;
  std::vector<int> ended;
  class item final : public weft::detail::attachment {
   public:
    item(int number, std::vector<int>& record) : number_(number), record_(record) {}
    ~item() override { record_.push_back(number_); }

   private:
    int number_;
    std::vector<int>& record_;
  };
  {
    executor home;
    core_of(home).attach(&first_key, std::make_unique<item>(1, ended));
    core_of(home).attach(&second_key, std::make_unique<item>(2, ended));
    EXPECT_NE(core_of(home).find_attachment(&first_key), nullptr);
    EXPECT_EQ(core_of(home).find_attachment(&ended), nullptr);
    home.run(nothing());
  }
  EXPECT_EQ(ended, (std::vector<int>{2, 1}));
}

// ---- threads

TASK_TEST(executor, refuses_to_run_inside_a_task) {
  executor other;
  for (executor* const each : {&other, executor::current()}) {
    EXPECT_EQ(test::code_thrown_by([&] { each->run(nothing()); }), errc::wrong_thread);
  }
  co_return;
}

TEST(executor, refuses_a_second_thread_even_one_that_got_the_identity_of_the_first) {
  executor home;
  std::thread([&] { home.run(nothing()); }).join();
  EXPECT_EQ(test::code_thrown_elsewhere([&] { home.run(nothing()); }), errc::wrong_thread);
}

TEST(executor, refuses_background_work_and_pollers_from_another_thread) {
  executor home;
  home.run(nothing());
  const auto begin = [&] { run_in_background(core_of(home), nothing()); };
  EXPECT_EQ(test::code_thrown_elsewhere(begin), errc::wrong_thread);
}

// Waits for what another thread posts.
task<> hear_from_elsewhere(executor& home, std::jthread& other) {
  event posted;
  other = std::jthread([&] { home.post([&] { posted.set(); }); });
  co_await posted.wait();
}

// Another thread pings so often, each time once the executor has heard it before and is asleep, or about to be.
template <class Ping>
task<> hear_each_ping(event& heard, Ping ping) {
  std::atomic<int> pongs{0};
  const std::jthread other([&] {
    for (int i = 0; i < 200; ++i) {
      ping();
      while (pongs.load() <= i) std::this_thread::yield();
    }
  });
  for (int i = 0; i < 200; ++i) {
    co_await heard.wait();
    heard.reset();
    ++pongs;
  }
}

TEST(executor, a_post_wakes_it_under_every_policy) {
  for (const poll_policy policy : {poll_policy::adaptive, poll_policy::spin, poll_policy::sleep}) {
    executor home({.policy = policy});
    event ping;
    home.run(hear_each_ping(ping, [&] { home.post([&] { ping.set(); }); }));
  }
}

// The driver of this machine, with a look at who wakes it and at the moments at which it is about to wait.
class watched_driver final : public event_driver {
 public:
  std::atomic<std::size_t> wakes{0};
  std::function<void()> before_waiting = [] {};

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  void attach_thread() override { inner_->attach_thread(); }
  void start(io_operation& operation) noexcept override { inner_->start(operation); }
  void cancel(io_operation& operation) noexcept override { inner_->cancel(operation); }
  std::size_t poll(std::size_t budget) noexcept override { return inner_->poll(budget); }
  std::size_t spin(std::size_t budget) noexcept override { return inner_->spin(budget); }
  std::size_t wait(std::size_t budget, std::optional<duration> timeout) noexcept override {
    before_waiting();
    return inner_->wait(budget, timeout);
  }
  void wake() noexcept override {
    ++wakes;
    inner_->wake();
  }
  [[nodiscard]] ssize_t try_receive(descriptor& source, msghdr& message) noexcept override {
    return inner_->try_receive(source, message);
  }
  [[nodiscard]] int try_now(io_operation& operation) noexcept override { return inner_->try_now(operation); }

 private:
  std::string why_;
  std::unique_ptr<event_driver> inner_ = open_driver(driver_choice::automatic, system_calls::kernel(), &why_);
};

TEST(executor, one_that_is_awake_costs_its_senders_no_system_call) {
  watched_driver driver;
  executor home({.policy = poll_policy::spin, .simulated_driver = &driver});
  constexpr int posts = 1000;
  int called = 0;
  home.run([&]() -> task<> {
    const std::jthread sender([&] {
      for (int i = 0; i < posts; ++i) home.post([&] { ++called; });
    });
    while (called < posts) co_await yield();
  }());
  EXPECT_EQ(driver.wakes, 0U);
}

TEST(executor, one_that_sleeps_is_woken_once_by_many_senders) {
  watched_driver driver;
  executor home({.policy = poll_policy::sleep, .simulated_driver = &driver});
  constexpr int posts = 100;
  int called = 0;
  event all;
  driver.before_waiting = [&] {
    if (called != 0) return;
    for (int i = 0; i < posts; ++i) {
      home.post([&] {
        if (++called == posts) all.set();
      });
    }
  };
  test::run(home, all.wait());
  EXPECT_EQ(called, posts);
  EXPECT_EQ(driver.wakes, 1U);
}

TASK_TEST(executor, thousands_of_posts_from_several_threads_all_arrive_in_the_order_of_each) {
  constexpr int senders = 4;
  constexpr int posts = 5000;
  executor& home = *executor::current();
  event all;
  std::array<int, senders> next{};
  int arrived = 0;
  bool in_order = true;
  const auto receive = [&](std::size_t sender, int number) {
    in_order = in_order && next[sender]++ == number;
    if (++arrived == senders * posts) all.set();
  };
  std::vector<std::jthread> threads;
  for (std::size_t sender = 0; sender < senders; ++sender) {
    threads.emplace_back([&home, &receive, sender] {
      for (int i = 0; i < posts; ++i) home.post([&receive, sender, i] { receive(sender, i); });
    });
  }
  co_await all.wait();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(arrived, senders * posts);
}

TEST(executor, may_be_destroyed_by_what_a_post_allowed_while_the_sender_has_not_returned_from_it) {
  for (int i = 0; i < 500; ++i) {
    std::jthread other;
    executor home;
    home.run(hear_from_elsewhere(home, other));
  }
}

TASK_TEST(executor, mail_that_sends_itself_again_starves_nobody) {
  bool stop = false;
  class chatter final : public detail::remote_work {
   public:
    chatter(executor& home, const bool& stop) : home_(home), stop_(stop) {}
    void send() { core_of(home_).submit(*this); }

   private:
    void run_on_executor() noexcept override {
      if (!stop_) send();
    }
    executor& home_;
    const bool& stop_;
  } chatter(*executor::current(), stop);
  chatter.send();
  co_await sleep_for(1ms);
  for (int i = 0; i < 100; ++i) co_await yield();
  stop = true;
  co_await test::settle();
}

TEST(executor, what_mail_posts_when_it_is_destroyed_is_called_too_however_long_the_chain) {
  class chained_post {
   public:
    chained_post(executor_core& home, int& left) : home_(&home), left_(&left) {}
    void operator()() const {
      if (--*left_ != 0) home_->post(*this);
    }

   private:
    executor_core* home_;
    int* left_;
  };
  int left = 10;
  {
    executor home;
    home.post(chained_post(core_of(home), left));
  }
  EXPECT_EQ(left, 0);
}

// ---- the order of the ready queue

std::vector<int> order_of_ten(std::optional<std::uint64_t> seed) {
  executor home({.ready_order_seed = seed});
  std::vector<int> record;
  const auto child = [&](int number) -> task<> {
    for (int i = 0; i < 3; ++i) {
      record.push_back(number);
      co_await yield();
    }
  };
  std::vector<task<>> children;
  for (int i = 0; i < 10; ++i) children.push_back(child(i));
  home.run(when_all(std::move(children)));
  return record;
}

TEST(executor, resumes_first_come_first_served_without_a_seed) {
  const std::vector<int> order = order_of_ten(std::nullopt);
  for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], static_cast<int>(i % 10));
}

TEST(executor, a_seed_repeats_its_order_and_another_seed_makes_another) {
  const std::vector<int> first = order_of_ten(1);
  EXPECT_EQ(order_of_ten(1), first);
  EXPECT_NE(order_of_ten(2), first);
  EXPECT_NE(order_of_ten(std::nullopt), first);
  EXPECT_NE(order_of_ten(std::uint64_t{1} << 40), order_of_ten(0));
}

// ---- pollers

// A completion queue in small, with an eventfd for a completion channel.
class fake_queue final : public poller, private test::immovable {
 public:
  explicit fake_queue(executor& home, bool may_lose_events = true)
      : home_(home), fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), may_lose_events_(may_lose_events) {
    home_.add_poller(*this);
  }
  ~fake_queue() {
    home_.remove_poller(*this);
    ::close(fd_);
  }

  /// Where the next completion shall come by itself.
  enum class moment { none, while_arming, after_arming, after_the_last_look };
  moment trap = moment::none;

  event completed;
  std::size_t polls = 0;
  std::size_t arms = 0;
  std::size_t largest_budget = 0;
  bool always_busy = false;
  std::size_t busy_polls = 0;               // busy for so many polls, and then there is a completion
  bool counts_as_one = false;               // each of them, however much it does: as those of a link
  std::function<void()> meanwhile = [] {};  // happens during each poll

  /// From any thread: a completion, as a device makes it.
  void complete() noexcept {
    pending_.fetch_add(1);
    if (armed_.exchange(false)) static_cast<void>(::eventfd_write(fd_, 1));
  }

  bool may_lose_events() const noexcept override { return may_lose_events_; }
  std::size_t poll(std::size_t budget) noexcept override {
    ++polls;
    meanwhile();
    largest_budget = std::max(largest_budget, budget);
    if (busy_polls > 0) {
      if (--busy_polls == 0) complete();
      return counts_as_one ? 1 : budget;
    }
    if (trap == moment::after_arming && armed_) spring();
    const std::size_t found = std::min<std::size_t>(pending_.exchange(0), budget);
    if (found != 0) completed.set();
    if (trap == moment::after_the_last_look && armed_) spring();
    return always_busy ? budget : found;
  }
  void arm() noexcept override {
    ++arms;
    if (trap == moment::while_arming) spring();
    armed_ = true;
  }
  void disarm() noexcept override {
    armed_ = false;
    eventfd_t count = 0;
    static_cast<void>(::eventfd_read(fd_, &count));
  }
  [[nodiscard]] int wait_fd() const noexcept override { return fd_; }

 private:
  void spring() noexcept {
    trap = moment::none;
    complete();
  }

  executor& home_;
  int fd_;
  bool may_lose_events_;
  std::atomic<std::size_t> pending_{0};
  std::atomic<bool> armed_{false};
};

TEST(executor, a_completion_at_any_moment_of_going_to_sleep_is_seen_at_once) {
  using moment = fake_queue::moment;
  for (const moment when : {moment::while_arming, moment::after_arming, moment::after_the_last_look}) {
    test::simulated_executor home;
    fake_queue queue(home);
    home.run([&]() -> task<> {
      for (int i = 0; i < 10; ++i) {
        queue.completed.reset();
        queue.trap = when;
        co_await queue.completed.wait();
      }
    }());
    EXPECT_EQ(home.world.elapsed(), 0ms) << "found only by the safety poll";
  }
}

TEST(executor, completions_from_a_device_wake_it_under_every_policy) {
  for (const poll_policy policy : {poll_policy::adaptive, poll_policy::spin, poll_policy::sleep}) {
    executor home({.policy = policy});
    fake_queue queue(home);
    home.run(hear_each_ping(queue.completed, [&] { queue.complete(); }));
  }
}

TEST(executor, a_completion_whose_event_the_kernel_dropped_is_found_by_the_safety_poll) {
  test::simulated_executor home;
  fake_queue queue(home);
  home.run([&]() -> task<> {
    queue.disarm();
    home.post([&] { queue.complete(); });  // not armed: nobody is told
    co_await queue.completed.wait();
  }());
  EXPECT_LE(home.world.elapsed(), 1s);
}

TEST(executor, only_pollers_that_may_lose_events_keep_it_from_sleeping_on) {
  for (const bool may_lose_events : {false, true}) {
    test::simulated_executor home;
    fake_queue queue(home, may_lose_events);
    test::run(home, sleep_for(10s));
    const std::uint64_t sleeps = home.statistics().sleeps;
    EXPECT_TRUE(may_lose_events ? sleeps >= 20 : sleeps <= 2) << sleeps;
  }
}

task<> ping_pong(descriptor& mine, int rounds, bool first) {
  std::array<std::byte, 64> bytes{};
  for (int i = 0; i < rounds; ++i) {
    if (first) co_await test::send_all(mine, bytes);
    co_await test::receive_all(mine, bytes);
    if (!first) co_await test::send_all(mine, bytes);
  }
}

// What every other source may do while one is never done: mail, a yield, a timer, sockets, a poller, a worker.
class other_sources {
 public:
  explicit other_sources(executor& home) : queue(home), home_(home) {}
  task<> use_all() {
    co_await hear_from_elsewhere(home_, thread_);
    for (int i = 0; i < 100; ++i) co_await yield();
    co_await sleep_for(1ms);
    co_await when_all(ping_pong(sockets_.a, 100, true), ping_pong(sockets_.b, 100, false));
    queue.complete();
    co_await queue.completed.wait();
    const auto job = [] { return 1; };
    EXPECT_EQ(co_await offload(job), 1);
  }
  fake_queue queue;

 private:
  executor& home_;
  test::socket_pair sockets_ = test::tcp_pair();
  std::jthread thread_;
};

TEST(executor, a_poller_that_is_always_busy_starves_nobody) {
  for (const poll_policy policy : {poll_policy::adaptive, poll_policy::sleep}) {
    executor home({.policy = policy});
    fake_queue busy(home);
    busy.always_busy = true;
    other_sources sources(home);
    home.run([&]() -> task<> {
      co_await sources.use_all();
      busy.always_busy = false;
    }());
    EXPECT_LE(busy.largest_budget, 1024U);
    EXPECT_EQ(busy.arms, sources.queue.arms);
  }
}

TEST(executor, a_poller_that_may_have_more_is_polled_again_instead_of_armed) {
  test::simulated_executor home;
  fake_queue queue(home);
  home.run([&]() -> task<> {
    const std::size_t arms = queue.arms;
    queue.busy_polls = 50;
    co_await queue.completed.wait();
    EXPECT_EQ(queue.arms, arms);
  }());
}

TEST(executor, late_itself_looks_at_all_that_has_come_before_its_timers_although_each_look_finds_little) {
  test::manual_clock time;
  executor home({.clock = &time});
  fake_queue queue(home);
  const auto be_late = [&]() -> task<> {
    co_await test::settle();
    queue.busy_polls = 50;
    queue.counts_as_one = true;
    time.advance(1s);
  };
  const auto both = home.run(when_all(test::failure_of(with_timeout(100ms, queue.completed.wait())), be_late()));
  EXPECT_FALSE(std::get<0>(both)) << test::words_of(std::get<0>(both));
}

TEST(executor, late_itself_resumes_all_whom_an_answer_makes_ready_before_its_timers) {
  test::manual_clock time;
  executor home({.clock = &time});
  fake_queue queue(home);
  event heard;
  event told;
  const auto hear = [&]() -> task<> {
    co_await queue.completed.wait();
    heard.set();
  };
  const auto tell = [&]() -> task<> {
    co_await heard.wait();
    told.set();
  };
  const auto be_late = [&]() -> task<> {
    co_await test::settle();
    queue.complete();
    time.advance(1s);
  };
  const auto all = home.run(when_all(test::failure_of(with_timeout(100ms, told.wait())), hear(), tell(), be_late()));
  EXPECT_FALSE(std::get<0>(all)) << test::words_of(std::get<0>(all));
}

TEST(executor, late_itself_opens_its_mail_before_its_timers) {
  test::manual_clock time;
  executor home({.clock = &time});
  event answered;
  const auto be_late = [&]() -> task<> {
    co_await test::settle();
    std::jthread([&] { home.post([&] { answered.set(); }); }).join();
    time.advance(1s);
  };
  const auto both = home.run(when_all(test::failure_of(with_timeout(100ms, answered.wait())), be_late()));
  EXPECT_FALSE(std::get<0>(both)) << test::words_of(std::get<0>(both));
}

// Each poll takes so long that each timer is late, and finds something.
TEST(executor, that_is_busy_lets_no_timer_wait_for_longer_than_it_was_late) {
  for (const duration poll : {3ms, 30ms}) {
    test::manual_clock time;
    executor home({.clock = &time});
    fake_queue queue(home);
    queue.always_busy = true;
    queue.meanwhile = [&] { time.advance(poll); };
    constexpr std::size_t sleeps = 100;
    home.run([&]() -> task<> {
      for (std::size_t i = 0; i < sleeps; ++i) co_await sleep_for(100ms);
      queue.always_busy = false;
    }());
    const auto polls_a_sleep = static_cast<std::size_t>(100ms / poll + 1);
    const std::size_t most_more = poll < 20ms ? 1 : 2;  // turns of 20 ms pass for an absence
    EXPECT_LE(queue.polls, sleeps * (polls_a_sleep + most_more));
  }
}

TEST(executor, a_task_that_is_always_ready_starves_nobody) {
  executor home;
  other_sources sources(home);
  bool stop = false;
  const auto spin = [&]() -> task<> {
    while (!stop) co_await yield();
  };
  const auto await_in_a_row = [&]() -> task<> {
    while (!stop) co_await nothing();
  };
  const auto wake_a_child_in_a_row = [&]() -> task<> {
    while (!stop) co_await when_all(nothing());
  };
  const auto use_the_others = [&]() -> task<> {
    co_await sources.use_all();
    stop = true;
  };
  home.run(when_all(spin(), await_in_a_row(), wake_a_child_in_a_row(), use_the_others()));
}

TASK_TEST(executor, tasks_that_make_each_other_ready_share_turns) {
  executor& home = *executor::current();
  const std::uint64_t before = home.statistics().turns;
  for (int i = 0; i < 1000; ++i) co_await when_all(nothing());
  const std::uint64_t turns = home.statistics().turns - before;
  EXPECT_LE(turns, 200U);
  EXPECT_GE(turns, 10U) << "a turn has a bound";
}

TASK_TEST(executor, polls_between_tasks_that_make_each_other_ready) {
  executor& home = *executor::current();
  fake_queue queue(home);
  const std::size_t polls = queue.polls;
  for (int i = 0; i < 100; ++i) co_await when_all(nothing());
  EXPECT_GE(queue.polls - polls, 100U);
}

TASK_TEST(executor, a_task_that_yields_lets_a_whole_turn_pass) {
  executor& home = *executor::current();
  const std::uint64_t before = home.statistics().turns;
  for (int i = 0; i < 10; ++i) co_await yield();
  EXPECT_GE(home.statistics().turns - before, 10U);
}

TEST(executor, sockets_that_are_always_busy_starve_nobody) {
  executor home;
  auto [left, right] = test::tcp_pair();
  other_sources sources(home);
  test::run_scope(home, [&](scope& children) -> task<> {
    children.spawn(ping_pong(left, 1'000'000'000, true));
    children.spawn(ping_pong(right, 1'000'000'000, false));
    co_await sources.use_all();
    children.request_stop();
  });
}

// Due again as soon as it has expired.
class relentless_timer final : private detail::timer {
 public:
  explicit relentless_timer(executor& home) : home_(home) { rearm(); }
  ~relentless_timer() { core_of(home_).disarm(*this); }
  std::size_t times = 0;

 private:
  void rearm() { core_of(home_).arm(*this, home_.now()); }
  void expired() noexcept override {
    ++times;
    rearm();
  }
  executor& home_;
};

TASK_TEST(executor, timers_that_are_always_due_starve_nobody) {
  executor& home = *executor::current();
  other_sources sources(home);
  std::deque<relentless_timer> timers;
  for (int i = 0; i < 200; ++i) timers.emplace_back(home);
  co_await sources.use_all();
  EXPECT_GT(timers.front().times, 0U);
}

TEST(executor, workers_that_are_never_done_starve_nobody) {
  executor home;
  other_sources sources(home);
  bool stop = false;
  std::size_t jobs = 0;
  const auto keep_busy = [&]() -> task<> {
    const auto nothing = [] {};
    while (!stop) {
      co_await offload(nothing);
      ++jobs;
    }
  };
  test::run_scope(home, [&](scope& children) -> task<> {
    for (int i = 0; i < 100; ++i) children.spawn(keep_busy());
    co_await sources.use_all();
    stop = true;
  });
  EXPECT_GT(jobs, 0U);
}

TASK_TEST(executor, asks_the_kernel_for_news_in_few_of_the_turns_that_have_other_work) {
  executor& home = *executor::current();
  const std::uint64_t before = home.kernel_entries();
  for (int i = 0; i < 800; ++i) co_await yield();
  EXPECT_LE(home.kernel_entries() - before, 110U);
}

TEST(executor, may_be_destroyed_on_another_thread_with_a_poller_still_attached) {
  static constexpr int key = 0;
  class device_part final : public weft::detail::attachment {
   public:
    explicit device_part(executor& home) : queue(home) {}
    fake_queue queue;
  };
  auto home = std::make_unique<executor>();
  const auto root = [&]() -> task<> {
    executor& here = *executor::current();
    auto part = std::make_unique<device_part>(here);
    fake_queue& queue = part->queue;
    core_of(here).attach(&key, std::move(part));
    co_await sleep_for(1ms);  // so that the poller is being watched
    queue.complete();
    co_await queue.completed.wait();
    co_await sleep_for(1ms);
  };
  std::thread([&] { home->run(root()); }).join();
  home.reset();
}

// ---- idleness

TEST(executor, an_idle_one_sleeps_until_its_timer_and_no_more) {
  test::simulated_executor home;
  test::run(home, sleep_for(24h));
  EXPECT_LE(home.statistics().sleeps, 2U);
  EXPECT_LE(home.statistics().turns, 4U);
}

TEST(executor, an_idle_one_with_a_poller_wakes_at_most_twice_a_second) {
  test::simulated_executor home;
  fake_queue queue(home);
  test::run(home, sleep_for(1h));
  EXPECT_LE(home.statistics().sleeps, 2U * 3600 + 2);
}

TASK_TEST(executor, an_idle_one_makes_no_turns_on_the_real_clock_either) {
  executor& home = *executor::current();
  fake_queue queue(home);
  co_await sleep_for(1ms);
  const executor_counters before = home.statistics();
  co_await sleep_for(100ms);
  const executor_counters& after = home.statistics();
  EXPECT_LE(after.turns - before.turns, 5U);
  EXPECT_LE(after.sleeps - before.sleeps, 5U);
}

TEST(executor, never_spins_on_a_virtual_clock) {
  for (const poll_policy policy : {poll_policy::adaptive, poll_policy::spin}) {
    test::simulation world;
    executor_options chosen = world.options();
    chosen.policy = policy;
    executor home(chosen);
    test::run(home, sleep_for(1h));
    EXPECT_EQ(world.elapsed(), 1h);
  }
}

TASK_TEST(executor, under_load_it_spins_and_neither_sleeps_nor_asks_the_kernel_much) {
  executor& home = *executor::current();  // adaptive
  fake_queue queue(home);
  for (int i = 0; i < 1000; ++i) {
    queue.completed.reset();
    queue.complete();
    co_await queue.completed.wait();
  }
  EXPECT_EQ(home.statistics().sleeps, 0U);
  EXPECT_LE(home.kernel_entries(), 1000U / 8 + 10);
}

TEST(executor, spinning_it_never_sleeps) {
  executor home({.policy = poll_policy::spin});
  test::run(home, sleep_for(1ms));
  EXPECT_EQ(home.statistics().sleeps, 0U);
}

// ---- work that is put off

class noted_work final : public detail::late_work {
 public:
  noted_work(std::vector<int>& notes, int number, int again = 0) : notes_(notes), number_(number), again_(again) {}
  ~noted_work() { home().take_back(*this); }
  void put_off() { home().put_off(*this); }

 private:
  static executor_core& home() { return core_of(*executor::current()); }
  void run_late() noexcept override {
    notes_.push_back(number_);
    if (again_-- > 0) put_off();
  }

  std::vector<int>& notes_;
  int number_;
  int again_;
};

TASK_TEST(executor, work_that_is_put_off_runs_once_when_the_tasks_of_the_turn_have_run) {
  std::vector<int> notes;
  noted_work first(notes, 1);
  noted_work second(notes, 2);
  const auto task_of_the_turn = [&](int number) -> task<> {
    notes.push_back(number);
    first.put_off();
    second.put_off();
    co_return;
  };
  co_await when_all(task_of_the_turn(10), task_of_the_turn(20));
  co_await yield();
  EXPECT_EQ(notes, (std::vector{10, 20, 1, 2}));
}

TASK_TEST(executor, work_that_puts_itself_off_again_lets_tasks_run_between) {
  std::vector<int> notes;
  noted_work work(notes, 1, 2);
  work.put_off();
  for (int turn = 0; turn < 8; ++turn) {
    co_await yield();
    notes.push_back(0);
  }
  EXPECT_EQ(std::count(notes.begin(), notes.end(), 1), 3);
  constexpr std::array at_once{1, 1};
  EXPECT_EQ(std::search(notes.begin(), notes.end(), at_once.begin(), at_once.end()), notes.end());
}

TASK_TEST(executor, work_that_is_taken_back_does_not_run) {
  std::vector<int> notes;
  noted_work kept(notes, 1);
  kept.put_off();
  {
    noted_work gone(notes, 2);
    gone.put_off();
  }
  noted_work behind(notes, 3);
  behind.put_off();
  co_await yield();
  EXPECT_EQ(notes, (std::vector{1, 3}));
}

}  // namespace
}  // namespace weft
