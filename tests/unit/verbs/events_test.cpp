// SPDX-License-Identifier: Apache-2.0
// What a device reports outside of any call, and receives that queue pairs share, on a device that exists only here.
#include <weft/net/verbs/executor_state.hpp>
#include <weft/net/verbs/receive_queue.hpp>
#include <weft/net/verbs/words.hpp>

#include "kit/expect_failure.hpp"
#include "mr/support.hpp"
#include "verbs/fake_device.hpp"

namespace weft::net::verbs {
namespace {

using test::eventful_libraries;
using test::says;

ibv_async_event device_event(ibv_event_type what, int port = 0) {
  return {.element = {.port_num = port}, .event_type = what};
}

class hearer : public async_handler {
 public:
  std::vector<ibv_event_type> heard;
  int last_port = 0;
  event came;

 private:
  void on_async_event(ibv_event_type what, int port) noexcept override {
    heard.push_back(what);
    last_port = port;
    came.set();
  }
};

/// One who hears of the device's events.
class device_user final : public hearer {
 public:
  explicit device_user(executor_state& shared) : use_(shared, *this) {}

 private:
  const executor_state::user use_;
};

class device_events : public ::testing::Test {
 protected:
  template <class Script>
  void run(Script script) {
    test::run([&]() -> task<> {
      executor_state& shared = executor_state::of(home);
      co_await script(shared);
    });
  }

  eventful_libraries libraries;
  std::shared_ptr<device> home = std::make_shared<device>(libraries, "");
};

#define TEST_F_SHARING(fixture, name) TEST_F_SCRIPT(fixture, name, (executor_state & shared), run(WEFT_SCRIPT))

TEST_F_SHARING(device_events, reach_whoever_uses_the_device_and_are_acknowledged) {
  device_user one(shared);
  device_user other(shared);
  libraries.raise(device_event(IBV_EVENT_DEVICE_FATAL));
  co_await one.came.wait();
  co_await other.came.wait();
  EXPECT_EQ(one.heard, std::vector{IBV_EVENT_DEVICE_FATAL});
  EXPECT_EQ(other.heard, one.heard);
  EXPECT_EQ(libraries.acknowledgements, 1);
}

TEST_F(device_events, that_one_executor_has_taken_reach_the_others) {
  std::latch ready(1);
  const auto wait_for_one = [&](executor_state& shared, bool raises) -> task<> {
    device_user here(shared);
    if (raises) {
      const auto both_listen = [&] { ready.wait(); };
      co_await offload(both_listen);
      libraries.raise(device_event(IBV_EVENT_PORT_ERR, 1));
    } else {
      ready.count_down();
    }
    co_await here.came.wait();
    EXPECT_EQ(here.heard, std::vector{IBV_EVENT_PORT_ERR});
    EXPECT_EQ(here.last_port, 1);
  };
  std::thread there([&] { run([&](executor_state& shared) { return wait_for_one(shared, false); }); });
  run([&](executor_state& shared) { return wait_for_one(shared, true); });
  there.join();
}

TEST_F_SHARING(device_events, about_a_port_are_remembered_until_it_is_back_and_end_nothing) {
  device_user here(shared);
  EXPECT_FALSE(home->audience().is_down(1));
  libraries.raise(device_event(IBV_EVENT_PORT_ERR, 1));
  co_await here.came.wait();
  EXPECT_TRUE(home->audience().is_down(1));
  EXPECT_FALSE(home->audience().is_down(2));
  EXPECT_FALSE(failure_of(IBV_EVENT_PORT_ERR, "rxe0"));
  here.came.reset();
  libraries.raise(device_event(IBV_EVENT_PORT_ACTIVE, 1));
  co_await here.came.wait();
  EXPECT_FALSE(home->audience().is_down(1));
}

TEST_F(device_events, about_a_port_are_remembered_in_their_order_whoever_takes_them) {
  libraries.raise(device_event(IBV_EVENT_PORT_ERR, 1));
  libraries.raise(device_event(IBV_EVENT_PORT_ACTIVE, 1));
  const auto take = [&] {
    ibv_async_event event{};
    EXPECT_EQ(home->audience().take(libraries, home->context(), event), 0);
  };
  std::thread other;
  std::atomic<bool> overtaken = false;
  libraries.on_taken = [&] {
    other = std::thread([&] {
      take();
      overtaken = true;
    });
    for (int i = 0; i < 10'000 && !overtaken; ++i) std::this_thread::yield();  // to one that might overtake us
  };
  take();
  other.join();
  EXPECT_FALSE(home->audience().is_down(1));
}

TEST_F_SHARING(device_events, that_come_while_nobody_uses_the_device_wait_and_wake_nobody) {
  libraries.raise(device_event(IBV_EVENT_PORT_ERR, 1));
  for (int i = 0; i < 20; ++i) co_await yield();
  EXPECT_EQ(libraries.asked, 0);
  device_user late(shared);
  co_await late.came.wait();
  EXPECT_TRUE(home->audience().is_down(1));
}

TEST_F_SHARING(device_events, of_a_device_that_was_taken_away_are_its_failure_and_are_not_asked_for_again) {
  device_user here(shared);
  libraries.take_away(EIO);
  co_await here.came.wait();
  for (int i = 0; i < 50; ++i) co_await yield();
  EXPECT_EQ(here.heard, std::vector{IBV_EVENT_DEVICE_FATAL});
  EXPECT_EQ(libraries.asked, 1);
}

struct failed_sink final : completion_sink {
  std::optional<error> failure;
  event came;
  void on_completion(const ibv_wc&, std::uint32_t) noexcept override {}
  void on_queue_failure(const error& why) noexcept override {
    failure = why;
    came.set();
  }
};

TEST_F_SHARING(device_events, of_a_completion_queue_fail_its_users_and_nobody_else) {
  device_user here(shared);
  completion_queue* const full = co_await shared.reserve(900);
  completion_queue* const other = co_await shared.reserve(900);
  EXPECT_NE(full, other);
  failed_sink overrun;
  failed_sink fine;
  const std::uint64_t one = full->attach(overrun);
  const std::uint64_t two = other->attach(fine);
  libraries.raise({.element = {.cq = full->get()}, .event_type = IBV_EVENT_CQ_ERR});
  co_await overrun.came.wait();
  EXPECT_TRUE(says(overrun.failure, "rxe0 has lost completions"));
  EXPECT_FALSE(fine.failure);
  EXPECT_TRUE(here.heard.empty());
  full->detach(one);
  other->detach(two);
  shared.release(*full, 900);
  shared.release(*other, 900);
}

using completion_queue_room = device_events;

TEST_F_SHARING(completion_queue_room, is_never_found_in_one_that_has_failed) {
  completion_queue* const failed = co_await shared.reserve(100);
  failed_sink early;
  const std::uint64_t tag = failed->attach(early);
  libraries.failures = {{"poll_cq", EIO}};
  failed->drain();
  EXPECT_TRUE(early.failure);
  failed_sink late;
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(failed->attach(late)); }), errc::connection_failed);
  completion_queue* const next = co_await shared.reserve(100);
  EXPECT_NE(next, failed);
  failed->detach(tag);
  shared.release(*failed, 100);
  shared.release(*next, 100);
}

TEST_F_SHARING(completion_queue_room, that_many_ask_for_at_once_is_found_in_one_queue) {
  auto third = shared.reserve(900);  // of a thousand
  const auto [one, two, three] = co_await when_all(shared.reserve(100), shared.reserve(100), std::move(third));
  EXPECT_EQ(one, two);
  EXPECT_NE(one, three);
  shared.release(*one, 200);
  shared.release(*three, 900);
}

TEST_F_SHARING(device_events, of_a_queue_pair_reach_its_owner_only_while_there_is_one) {
  device_user bystander(shared);
  hearer owner;
  const auto target = std::make_shared<async_target>(shared.owner(), owner);
  ibv_qp pair{};
  pair.qp_context = target.get();
  const ibv_async_event event{.element = {.qp = &pair}, .event_type = IBV_EVENT_QP_FATAL};
  libraries.raise(event);
  co_await owner.came.wait();
  EXPECT_EQ(owner.heard, std::vector{IBV_EVENT_QP_FATAL});
  target->end();
  libraries.raise(event);
  libraries.raise(device_event(IBV_EVENT_PORT_ERR, 1));
  co_await bystander.came.wait();
  EXPECT_EQ(owner.heard.size(), 1u);
  EXPECT_EQ(bystander.heard, std::vector{IBV_EVENT_PORT_ERR});
}

TEST(words, of_device_events_name_the_device_and_the_cause) {
  for (const auto& [what, code] : {std::pair{IBV_EVENT_DEVICE_FATAL, errc::connection_failed},
                                   {IBV_EVENT_QP_FATAL, errc::connection_failed},
                                   {IBV_EVENT_QP_REQ_ERR, errc::protocol_error},
                                   {IBV_EVENT_QP_ACCESS_ERR, errc::protocol_error},
                                   {IBV_EVENT_SRQ_ERR, errc::connection_failed}}) {
    const auto why = failure_of(what, "mlx5_0");
    EXPECT_TRUE(test::failed_with(why, code, "mlx5_0")) << what;
    EXPECT_TRUE(says(why, ibv_event_type_str(what)));
  }
  for (const ibv_event_type harmless : {IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG,
                                        IBV_EVENT_PORT_ACTIVE, IBV_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_GID_CHANGE}) {
    EXPECT_FALSE(failure_of(harmless, "mlx5_0")) << harmless;
  }
}

// ---- shared receives ----

class taker final : public receive_sink {
 public:
  std::vector<receive_work*> taken;
  std::optional<error> failure;
  event failed;

 private:
  void on_receive(const ibv_wc&, receive_work& work) noexcept override { taken.push_back(&work); }
  void on_receives_failed(const error& why) noexcept override {
    failure = why;
    failed.set();
  }
};

class shared_queue : public device_events {
 protected:
  /// Runs `script(shared, queue)` with a queue of which all receives are posted.
  template <class Script>
  void with_queue(Script script) {
    run([&](executor_state& shared) -> task<> {
      std::unique_ptr<net::receive_queue> made = co_await receive_queue::make(shared, depth);
      auto& queue = static_cast<receive_queue&>(*made);
      for (std::uint16_t i = 0; i < depth; ++i) {
        works[i].slot = i;
        queue.post(works[i]);
      }
      co_await script(shared, queue);
    });
    EXPECT_EQ(libraries.shared_queues, 0);
  }

  void complete(std::size_t posted, std::uint32_t pair) {
    ibv_wc& what = libraries.completions.emplace_back();
    what.wr_id = libraries.posted[posted];
    what.qp_num = pair;
  }

  static constexpr std::uint16_t depth = 3;
  std::array<receive_work, depth> works{};
};

#define TEST_F_ON_QUEUE(fixture, name)                                                            \
  TEST_F_SCRIPT(fixture, name, ([[maybe_unused]] executor_state & shared, receive_queue & queue), \
                with_queue(WEFT_SCRIPT))

TEST_F_ON_QUEUE(shared_queue, gives_each_receive_to_the_queue_pair_that_has_taken_it) {
  taker one;
  taker other;
  queue.attach(17, one);
  queue.attach(5, other);
  complete(0, 5);
  complete(1, 17);
  complete(2, 5);
  queue.completions().drain();
  EXPECT_EQ(one.taken, std::vector{&works[1]});
  EXPECT_EQ(other.taken, (std::vector{&works[0], &works[2]}));
  queue.detach(17);
  queue.detach(5);
  co_return;
}

TEST_F_ON_QUEUE(shared_queue, posts_again_what_comes_for_a_queue_pair_that_is_gone) {
  taker gone;
  queue.attach(17, gone);
  queue.detach(17);
  complete(1, 17);
  queue.completions().drain();
  EXPECT_TRUE(gone.taken.empty());
  EXPECT_EQ(libraries.posted.size(), depth + 1u);
  EXPECT_EQ(libraries.posted.back(), libraries.posted[1]);
  co_return;
}

TEST_F_ON_QUEUE(shared_queue, does_not_take_what_an_earlier_queue_pair_has_left_for_that_of_the_next_of_its_number) {
  complete(0, 17);
  taker next;
  queue.attach(17, next);
  EXPECT_TRUE(next.taken.empty());
  complete(1, 17);
  queue.completions().drain();
  EXPECT_EQ(next.taken, std::vector{&works[1]});
  queue.detach(17);
  co_return;
}

TEST_F_ON_QUEUE(shared_queue, that_cannot_be_posted_to_fails_those_who_use_it_and_those_who_will) {
  taker user;
  queue.attach(17, user);
  libraries.post_failure = ENOMEM;
  queue.post(works[0]);
  EXPECT_EQ(user.failure->code().value(), ENOMEM);
  taker late;
  EXPECT_EQ(test::code_thrown_by([&] { queue.attach(18, late); }).value(), ENOMEM);
  queue.detach(17);
  co_return;
}

TEST_F_ON_QUEUE(shared_queue, that_the_device_reports_as_failed_fails_those_who_use_it) {
  const device_user watching(shared);
  taker user;
  queue.attach(17, user);
  libraries.raise({.element = {.srq = queue.get()}, .event_type = IBV_EVENT_SRQ_LIMIT_REACHED});
  libraries.raise({.element = {.srq = queue.get()}, .event_type = IBV_EVENT_SRQ_ERR});
  co_await user.failed.wait();
  EXPECT_TRUE(says(user.failure, "rxe0"));
  queue.detach(17);
}

// Of a device that the kernel has taken away, nothing can be destroyed: the libraries keep it.
TEST_F(shared_queue, that_cannot_be_destroyed_tells_of_nothing_when_its_owner_has_gone) {
  libraries.destroy_failure = EIO;
  with_queue([](executor_state&, receive_queue&) -> task<> { co_return; });
  ASSERT_NE(libraries.kept, nullptr);
  run([&](executor_state& shared) -> task<> {
    device_user here(shared);
    libraries.raise({.element = {.srq = libraries.kept.get()}, .event_type = IBV_EVENT_SRQ_ERR});
    libraries.raise(device_event(IBV_EVENT_PORT_ERR, 1));
    co_await here.came.wait();
    EXPECT_EQ(here.heard, std::vector{IBV_EVENT_PORT_ERR});
  });
}

TEST_F(shared_queue, is_refused_where_the_device_has_none_or_none_so_deep) {
  run([&](executor_state& shared) -> task<> {
    EXPECT_EQ(co_await test::code_of(receive_queue::make(shared, 9)), errc::invalid_argument);
  });
  libraries.limits.max_srq = 0;
  home = std::make_shared<device>(libraries, "");
  run([&](executor_state& shared) -> task<> {
    EXPECT_EQ(co_await test::code_of(receive_queue::make(shared, 1)), errc::not_supported);
  });
  EXPECT_EQ(libraries.shared_queues, 0);
}

// A kernel takes a dead process's memory from the device before its queue pairs: whoever writes there meanwhile is
// refused, and not told why.
TEST(verbs_words, of_a_refused_access_say_once_that_a_dead_process_looks_like_that) {
  for (const ibv_wc_status status : {IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR}) {
    ibv_wc what{};
    what.status = status;
    const error why = failure_of_request(what);
    EXPECT_EQ(why.code(), errc::remote_access);
    const std::string words = why.what();
    for (const char* each : {"the peer refused", "its memory", "its process has ended", "vendor error"}) {
      const std::size_t first = words.find(each);
      EXPECT_NE(first, std::string::npos) << words;
      EXPECT_EQ(words.find(each, first + 1), std::string::npos) << words;
    }
  }
}

}  // namespace
}  // namespace weft::net::verbs
