// SPDX-License-Identifier: Apache-2.0
// How long a link waits for a device that says nothing, and who destroys a queue pair: on a device that exists only
// here, and by a clock that the test turns.
#include <weft/net/verbs/endpoint.hpp>
#include <weft/net/verbs/executor_state.hpp>
#include <weft/net/verbs/rdma_link.hpp>
#include <weft/runtime/as_result.hpp>
#include <weft/runtime/clock.hpp>
#include <weft/runtime/event.hpp>
#include <weft/runtime/sleep.hpp>
#include <weft/runtime/when_all.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <latch>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "verbs_fake_device.hpp"

namespace weft::net::verbs {
namespace {

using namespace std::chrono_literals;

constexpr auto dead_peer_after = 500ms;
constexpr auto between_looks = dead_peer_after / 2;

class hand_driven final : public weft::clock {
 public:
  [[nodiscard]] time_point now() noexcept override { return now_; }
  void advance(duration time) noexcept { now_ += time; }

 private:
  time_point now_{};
};

// Has queue pairs, and answers what is posted to them only when it is told to.
class patient_libraries final : public test::eventful_libraries {
 public:
  patient_libraries() { limits.max_qp_wr = 100; }

  std::vector<std::vector<unsigned>> doorbells;  // the send_flags of what each has handed over
  std::vector<ibv_wr_opcode> opcodes;            // of all of that
  std::atomic<int> pairs = 0;
  std::function<int()> on_dealloc;  // what ibv_dealloc_mw(3) returns; null: it succeeds
  int destroy_pair_failure = 0;
  int break_failure = 0;        // of what takes a queue pair to ERR
  std::atomic<int> broken = 0;  // queue pairs that are there

  void answer_all() { complete_all(IBV_WC_SUCCESS); }

  int create_id(rdma_event_channel*, void* context, rdma_cm_id** made) noexcept override {
    *made = new rdma_cm_id{};
    (*made)->context = context;
    (*made)->port_num = 1;
    return 0;
  }
  int destroy_id(rdma_cm_id* id) noexcept override {
    delete id;
    return 0;
  }
  int init_qp_attr(rdma_cm_id*, ibv_qp_attr*, int*) noexcept override { return 0; }
  int disconnect(rdma_cm_id*) noexcept override { return 0; }
  int create_qp(ibv_pd*, ibv_qp_init_attr*, ibv_qp** made) noexcept override {
    ++pairs;
    *made = new ibv_qp{};
    return 0;
  }
  int destroy_qp(ibv_qp* pair) noexcept override {
    --pairs;
    kept_.reset(pair);
    if (destroy_pair_failure == 0) kept_.reset();
    return -destroy_pair_failure;
  }
  int alloc_mw(ibv_pd*, ibv_mw_type, ibv_mw** made) noexcept override {
    *made = &windows_.emplace_back();
    (*made)->rkey = static_cast<std::uint32_t>(windows_.size()) << 8;
    return 0;
  }
  int dealloc_mw(ibv_mw*) noexcept override { return on_dealloc ? on_dealloc() : 0; }
  int modify_qp(ibv_qp*, ibv_qp_attr* wanted, int) noexcept override {
    if (wanted->qp_state != IBV_QPS_ERR) return 0;
    if (break_failure != 0) return -break_failure;
    ++broken;
    complete_all(IBV_WC_WR_FLUSH_ERR);
    return 0;
  }
  int post_send(ibv_qp*, ibv_send_wr* first, ibv_send_wr**) noexcept override {
    std::vector<unsigned>& flags = doorbells.emplace_back();
    for (const ibv_send_wr* item = first; item != nullptr; item = item->next) {
      flags.push_back(item->send_flags);
      opcodes.push_back(item->opcode);
      open_.push_back(item->wr_id);
    }
    return 0;
  }

 private:
  void complete_all(ibv_wc_status status) {
    for (const std::uint64_t id : std::exchange(open_, {})) {
      ibv_wc what{};
      what.wr_id = id;
      what.status = status;
      completions.push_back(what);
    }
  }

  std::deque<ibv_mw> windows_;
  std::vector<std::uint64_t> open_;
  std::unique_ptr<ibv_qp> kept_;  // that could not be destroyed
};

class witness final : public link_events {
 public:
  explicit witness(hand_driven& time) : time_(time) {}

  std::optional<time_point> ended_at;
  std::error_code why;
  std::size_t done = 0;
  event gone;

 private:
  void completed(work_request&, work_status status) noexcept override { done += status == work_status::done ? 1 : 0; }
  void received(receive_work&, const arrival&) noexcept override {}
  void receive_flushed(receive_work&) noexcept override {}
  void ended(bool, const error& reason) noexcept override {
    ended_at = time_.now();
    why = reason.code();
  }
  void closed() noexcept override { gone.set(); }

  hand_driven& time_;
};

work_request request_of(work_kind kind, std::uint16_t slot, std::size_t bytes) {
  static std::byte memory[64];
  work_request work;
  work.slot = slot;
  work.kind = kind;
  work.segment_count = 1;
  work.segments[0] = {.iov_base = memory, .iov_len = bytes};  // which no device reads here
  work.local_keys[0] = 1;
  return work;
}

class verbs_silence : public ::testing::Test {
 protected:
  /// Runs `script(link)` with a link that has been heard from, just after a look of its timer.
  template <class Script>
  void with_link(Script script, std::chrono::milliseconds patience = dead_peer_after) {
    const auto root = [&]() -> task<> {
      auto made = make_endpoint(executor_state::of(home));
      auto pair = co_await std::move(made);
      const agreement agreed{.incoming_reads = 1, .outgoing_reads = 1, .dead_peer_after = patience};
      rdma_link link(std::move(pair), memory, "peer", agreed, false);
      link_parameters parameters;
      parameters.send_depth = 8;
      link.start(events, parameters);
      co_await let_pass(0ms);
      libraries.answer_all();  // the first sign of life
      co_await let_pass(between_looks);
      co_await script(link);
      link.abort("the test is over");
      co_await events.gone.wait();
    };
    executor_options chosen;
    chosen.clock = &time;
    executor running(chosen);
    running.run(root());
    EXPECT_EQ(libraries.pairs, 0);
  }

  static task<std::unique_ptr<endpoint>> make_endpoint(executor_state& shared) {
    auto made = std::make_unique<endpoint>(shared, cm_id(shared.channel().handle(), static_cast<cm_handler*>(nullptr)));
    set_up_options wanted;
    wanted.most_requests = 8;
    co_await made->make_pair(wanted);
    co_return made;
  }

  /// Time passes, and whatever is due then happens: a busy executor looks at the clock once in 64 turns.
  task<> let_pass(duration left) {
    constexpr duration step = 1ms;
    do {
      const duration next = std::min(left, step);
      time.advance(next);
      left -= next;
      for (int turn = 0; turn < 70; ++turn) co_await yield();
    } while (left != duration::zero() && !events.ended_at);
  }

  static void post(rdma_link& link, std::initializer_list<work_request*> works) {
    for (work_request* const work : works) link.post(*work);
    link.ring();
  }

  hand_driven time;
  patient_libraries libraries;
  std::shared_ptr<device> home = std::make_shared<device>(libraries, "");
  std::shared_ptr<domain> memory = std::make_shared<domain>(home);
  witness events{time};
};

TEST_F(verbs_silence, is_borne_for_as_long_as_was_promised_wherever_in_between_two_looks_it_begins) {
  for (const duration before : {duration(0ms), duration(1ms), duration(100ms), duration(between_looks - 1ms)}) {
    events.ended_at.reset();
    events.gone.reset();
    with_link([&](rdma_link& link) -> task<> {
      auto work = request_of(work_kind::write, 0, 64);
      co_await let_pass(before);
      post(link, {&work});
      const time_point posted = time.now();
      co_await let_pass(10 * dead_peer_after);
      EXPECT_EQ(events.why, errc::peer_vanished);
      EXPECT_GE(events.ended_at.value_or(posted) - posted, dead_peer_after) << before.count();
      EXPECT_LE(events.ended_at.value_or(posted) - posted, dead_peer_after + between_looks) << before.count();
    });
  }
}

TEST_F(verbs_silence, of_an_idle_peer_is_asked_about_and_borne_for_as_long_again) {
  with_link([&](rdma_link&) -> task<> {
    const std::size_t before = libraries.doorbells.size();
    co_await let_pass(between_looks);
    EXPECT_EQ(libraries.doorbells.size(), before + 1);  // a sign of life is asked for
    const time_point asked = time.now();
    co_await let_pass(10 * dead_peer_after);
    EXPECT_EQ(events.why, errc::peer_vanished);
    EXPECT_EQ(events.ended_at.value_or(asked) - asked, dead_peer_after);
  });
}

TEST_F(verbs_silence, may_last_for_ever) {
  with_link(
      [&](rdma_link& link) -> task<> {
        auto small = request_of(work_kind::write, 0, 64);
        post(link, {&small});
        co_await let_pass(0ms);
        const std::size_t before = libraries.doorbells.size();
        co_await let_pass(10 * dead_peer_after);
        EXPECT_EQ(libraries.doorbells.size(), before);
        EXPECT_FALSE(events.ended_at);
        libraries.answer_all();
        co_await let_pass(0ms);
      },
      std::chrono::milliseconds::max());
}

TEST_F(verbs_silence, of_a_small_request_lasts_as_long_as_the_large_one_that_tells_of_it) {
  with_link([&](rdma_link& link) -> task<> {
    auto small = request_of(work_kind::write, 0, 64);
    auto large = request_of(work_kind::write, 1, std::size_t{1} << 30);
    post(link, {&small, &large});
    co_await let_pass(10 * dead_peer_after);
    EXPECT_EQ(libraries.doorbells.back().size(), 2u);
    EXPECT_EQ(libraries.doorbells.back().front() & IBV_SEND_SIGNALED, 0u);
    EXPECT_FALSE(events.ended_at);
    libraries.answer_all();
    co_await let_pass(0ms);
    EXPECT_EQ(events.done, 2u);
  });
}

TEST_F(verbs_silence, of_a_sign_of_life_lasts_as_long_as_the_large_request_that_tells_of_it) {
  with_link([&](rdma_link& link) -> task<> {
    auto large = request_of(work_kind::read, 0, std::size_t{1} << 30);
    const std::size_t before = libraries.doorbells.size();
    const auto behind_the_sign = [&]() -> task<> {
      co_await sleep_for(between_looks);  // as long as the link's timer, so both are due in one turn
      post(link, {&large});
    };
    auto posting = behind_the_sign();
    auto passing = let_pass(10 * dead_peer_after);
    co_await when_all(std::move(posting), std::move(passing));
    EXPECT_EQ(libraries.doorbells.size(), before + 1);
    EXPECT_EQ(libraries.doorbells.back().size(), 2u);
    EXPECT_EQ(libraries.doorbells.back().front() & IBV_SEND_SIGNALED, 0u);
    EXPECT_FALSE(events.ended_at);
  });
}

TEST_F(verbs_silence, of_a_small_request_lasts_as_long_as_the_message_behind_it_waits_for_a_receive) {
  with_link([&](rdma_link& link) -> task<> {
    auto small = request_of(work_kind::write, 0, 64);
    auto message = request_of(work_kind::send, 1, 64);
    post(link, {&small, &message});
    co_await let_pass(10 * dead_peer_after);
    EXPECT_EQ(libraries.doorbells.back().size(), 2u);
    EXPECT_EQ(libraries.doorbells.back().front() & IBV_SEND_SIGNALED, 0u);
    EXPECT_FALSE(events.ended_at);
  });
}

TEST_F(verbs_silence, of_a_request_that_tells_of_itself_is_not_excused_by_what_is_behind_it) {
  with_link([&](rdma_link& link) -> task<> {
    auto small = request_of(work_kind::write, 0, 64);
    auto large = request_of(work_kind::write, 1, std::size_t{1} << 30);
    auto message = request_of(work_kind::send, 2, 64);
    post(link, {&small});
    const time_point posted = time.now();
    co_await let_pass(1ms);
    post(link, {&large, &message});
    co_await let_pass(10 * dead_peer_after);
    EXPECT_EQ(events.why, errc::peer_vanished);
    EXPECT_LE(events.ended_at.value_or(posted) - posted, dead_peer_after + between_looks);
  });
}

// Soft-RoCE breaks the connection off where the answer to a read of nothing was lost, and it is asked again.
TEST_F(verbs_silence, is_broken_by_something_that_may_be_lost_on_its_way_and_back) {
  with_link([&](rdma_link&) -> task<> {
    co_await let_pass(10 * dead_peer_after);
    EXPECT_FALSE(libraries.opcodes.empty());
    for (const ibv_wr_opcode each : libraries.opcodes) EXPECT_EQ(each, IBV_WR_RDMA_WRITE);
  });
}

class verbs_binding : public verbs_silence {
 protected:
  /// Whether a window gets bound in so long.
  task<std::error_code> expose(rdma_link& link, std::chrono::milliseconds limit) {
    auto exposing = link.expose(bytes_, mr::usage::write_dst);
    const auto made = co_await as_result(with_timeout(limit, std::move(exposing)));
    co_return made ? std::error_code() : made.error().code();
  }

  /// Runs `script(link)` with a link whose peer has no receive for a message, and for as long as it likes.
  template <class Script>
  void behind_a_message(Script script) {
    mr::registration region = memory->register_now(bytes_, {.usage = mr::usage::bind_window});
    with_link([&](rdma_link& link) -> task<> {
      auto message = request_of(work_kind::send, 0, 64);
      post(link, {&message});
      co_await let_pass(0ms);
      co_await script(link);
    });
    memory->deregister_now(region);
  }

 private:
  std::array<std::byte, 64> bytes_{};
};

// The window may be bound at any moment, so it cannot be let go: the link has to end.
TEST_F(verbs_binding, that_has_begun_is_waited_for_until_shortly_after_a_stop) {
  behind_a_message([&](rdma_link& link) -> task<> {
    const time_point start = time.now();
    auto exposing = expose(link, 100ms);
    auto passing = let_pass(5000ms);
    const auto [why, passed] = co_await when_all(std::move(exposing), std::move(passing));
    EXPECT_EQ(why, errc::timed_out);
    EXPECT_EQ(events.why, errc::closed);
    EXPECT_LE(events.ended_at.value_or(time_point::max()) - start, 1200ms);
  });
}

TEST_F(verbs_binding, that_waits_for_its_turn_is_stopped_at_once_and_harms_nobody) {
  behind_a_message([&](rdma_link& link) -> task<> {
    const auto let_go = [&]() -> task<> {
      co_await let_pass(200ms);
      EXPECT_FALSE(events.ended_at);
      libraries.answer_all();
    };
    std::vector<task<std::error_code>> exposing;
    for (unsigned i = 0; i != bind_requests; ++i) exposing.push_back(expose(link, 10'000ms));
    exposing.push_back(expose(link, 100ms));
    auto all = when_all(std::move(exposing));
    auto letting = let_go();
    const auto [codes, gone] = co_await when_all(std::move(all), std::move(letting));
    for (unsigned i = 0; i != bind_requests; ++i) EXPECT_EQ(codes[i], std::error_code());
    EXPECT_EQ(codes.back(), errc::timed_out);
    EXPECT_FALSE(events.ended_at);
  });
}

// The loop of another library, which will call step() when it sees fit.
class other_loop final : public executor::outer_loop {
 public:
  void wake() noexcept override {}
};

using verbs_disposal = verbs_silence;

TEST_F(verbs_disposal, leaves_an_executor_that_is_driven_from_outside_to_whoever_drives_it) {
  std::unique_ptr<endpoint> pair;
  other_loop outside;
  executor guest;
  const auto root = [&]() -> task<> {
    auto made = make_endpoint(executor_state::of(home));
    pair = co_await std::move(made);
  };
  guest.run(root());
  guest.drive_from(&outside);
  const std::uint64_t turns = guest.statistics().turns;
  endpoint::dispose(std::move(pair));
  EXPECT_EQ(guest.statistics().turns, turns);
  EXPECT_EQ(libraries.pairs, 1);
  do {
    static_cast<void>(guest.step());
    std::this_thread::yield();  // to the worker
  } while (libraries.pairs != 0 || guest.has_work());
  guest.drive_from(nullptr);
}

TEST_F(verbs_disposal, of_windows_is_waited_for_by_whoever_takes_one_back) {
  ibv_mw window{};
  window.rkey = 17;
  std::latch begun(1);
  std::atomic<bool> gone = false;
  libraries.on_dealloc = [&] {
    begun.count_down();
    for (int i = 0; i < 10'000; ++i) std::this_thread::yield();  // to an executor that might go on too early
    gone = true;
    return 0;
  };
  const auto root = [&]() -> task<> {
    auto made = make_endpoint(executor_state::of(home));
    auto pair = co_await std::move(made);
    pair->keep_window({.window = &window});
    const auto destroy = [&]() -> task<> { co_await pair->destroy(); };
    const auto take_back = [&]() -> task<> {
      begun.wait();  // a worker is at it
      EXPECT_TRUE(pair->drop_window(17));
      EXPECT_TRUE(gone);
      co_return;
    };
    co_await when_all(destroy(), take_back());
  };
  executor running;
  running.run(root());
}

// The key of a window of type 1 works on every connection of the device, whatever becomes of its own.
TEST_F(verbs_disposal, of_a_window_that_stays_open_to_other_peers_ends_the_process) {
  libraries.limits.device_cap_flags = IBV_DEVICE_MEM_WINDOW;
  home = std::make_shared<device>(libraries, "");
  const auto take_back = [&] {
    ibv_mw window{};
    libraries.on_dealloc = [] { return -EBUSY; };
    const auto root = [&]() -> task<> {
      auto made = make_endpoint(executor_state::of(home));
      auto pair = co_await std::move(made);
      pair->keep_window({.window = &window});
      static_cast<void>(pair->drop_window(window));
    };
    executor running;
    running.run(root());
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a copy of this process would have no workers
  EXPECT_DEATH(take_back(), "a memory window could not be deallocated");
}

// Nobody has taken the queue pair of a set-up that has failed to ERR, and its peer may be connected.
TEST_F(verbs_disposal, of_a_queue_pair_that_stays_keeps_it_from_memory_or_ends_the_process) {
  const auto set_up_in_vain = [&] {
    const auto root = [&]() -> task<> {
      auto made = make_endpoint(executor_state::of(home));
      auto pair = co_await std::move(made);
      co_await pair->destroy();
    };
    executor running;
    running.run(root());
  };
  libraries.destroy_pair_failure = EIO;  // the device has gone
  set_up_in_vain();
  EXPECT_EQ(libraries.broken, 0);
  libraries.destroy_pair_failure = EBUSY;
  set_up_in_vain();
  EXPECT_EQ(libraries.broken, 1);
  libraries.break_failure = ETIMEDOUT;
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a copy of this process would have no workers
  EXPECT_DEATH(set_up_in_vain(), "a queue pair could not be destroyed");
}

}  // namespace
}  // namespace weft::net::verbs
