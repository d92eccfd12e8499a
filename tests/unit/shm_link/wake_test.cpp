// SPDX-License-Identifier: Apache-2.0
// Ends that sleep, and ends that are kept busy: one packet wakes a sleeping one, none is lost, and waiting costs
// nothing.

#include <random>

#include "shm_link/support.hpp"

namespace weft::test {
namespace {

/// Takes what our end has written, and gives it room.
void take_all(manual_end& hand) {
  while (hand.take()) continue;
  hand.release();
}

class shm_wake_up : public against_manual_end {};
WEFT_ON_BOTH_ENDS(shm_wake_up);

#define TEST_P_TO_PEER(suite, name) \
  TEST_P_SCRIPT(suite, name, ([[maybe_unused]] manual_end & hand, net::connection & peer), against(WEFT_SCRIPT))

TEST_P_TO_PEER(shm_wake_up, comes_once_to_an_end_that_sleeps_and_never_to_one_that_is_awake) {
  for (int round = 0; round < 100; ++round) {
    for (int i = 0; i < 3; ++i) co_await send(peer);
    EXPECT_EQ(hand.wake_ups(), 0u);
    hand.own().attention = shm::end_words::asleep;
    for (int i = 0; i < 3; ++i) co_await send(peer);
    EXPECT_EQ(hand.wake_ups(), 1u);
    EXPECT_EQ(hand.own().attention, shm::end_words::awake);
    take_all(hand);
  }
}

TEST_P_TO_PEER(shm_wake_up, comes_when_as_much_room_was_made_as_an_end_may_wait_for) {
  hand.own().attention = shm::end_words::asleep;
  const std::uint64_t taken = hand.other().taken;
  while (hand.other().taken == taken) {
    EXPECT_EQ(hand.wake_ups(), 0u);
    hand.send(bytes(100));
    static_cast<void>(co_await peer.recv_or_throw());
  }
  EXPECT_EQ(hand.wake_ups(), 1u);
  EXPECT_GE(hand.other().taken - taken, hand.out().capacity() / 4);
}

TEST_P_BY_HAND(shm_wake_up, finds_room_although_the_system_gives_sockets_the_least_that_there_is) {
  const int least = 1;  // the kernel makes of it what no setting can go below
  EXPECT_EQ(::setsockopt(hand.socket().fd(), SOL_SOCKET, SO_SNDBUF, &least, sizeof least), 0);
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(::send(hand.socket().fd(), "w", 1, MSG_DONTWAIT | MSG_NOSIGNAL), 1) << round;
    co_await sleep_for(1ms);  // so that the executor sleeps, and hears its sockets when it wakes
  }
}

TEST_P_TO_PEER(shm_wake_up, is_asked_for_by_an_end_whose_executor_sleeps) {
  co_await sleep_for(1ms);
  std::size_t sleeping = 0;
  for (int round = 0; round < 20; ++round) {
    std::thread other([&] {
      while (hand.other().attention != shm::end_words::asleep) std::this_thread::yield();
      ++sleeping;
      hand.send(bytes(100));
    });
    static_cast<void>(co_await peer.recv_or_throw());
    other.join();
  }
  EXPECT_EQ(sleeping, 20u);
}

TEST_P_TO_PEER(shm_wake_up, is_not_needed_while_nothing_happens) {
  co_await expect_idle();
  hand.send(bytes(100));
  static_cast<void>(co_await peer.recv_or_throw());
  co_await send(peer);
  co_await expect_idle();
}

TEST_P_TO_PEER(shm_wake_up, is_not_needed_for_a_message_that_is_there_when_a_task_asks_for_one) {
  bool others_had_a_turn = false;
  const auto other = [&]() -> task<> {
    others_had_a_turn = true;
    co_return;
  };
  const auto receive = [&](scope& tasks) -> task<> {
    co_await yield();
    tasks.spawn(other());
    hand.send(bytes(100));
    hand.send(bytes(50));
    EXPECT_EQ((co_await peer.recv_or_throw()).size(), 100u);
    EXPECT_EQ((co_await peer.recv_or_throw()).size(), 50u);
    EXPECT_FALSE(others_had_a_turn);
  };
  co_await with_scope(on_failure::stop_siblings, receive);
}

TEST_P_TO_PEER(shm_wake_up, is_not_asked_for_by_an_end_whose_tasks_take_messages_between_its_polls) {
  for (int round = 0; round < 5000; ++round) {
    hand.send(bytes(10));
    static_cast<void>(co_await peer.recv_or_throw());
    co_await yield();
    if (hand.other().attention != shm::end_words::awake) co_return ADD_FAILURE() << round;
    take_all(hand);
  }
}

// The peer has taken everything, so that there is more room than before, and that is not what is waited for.
TEST_P_TO_PEER(shm_wake_up, is_not_needed_while_more_reads_wait_than_may_be_outstanding) {
  const mr::remote_slice source(0x1234, 0, 10, mr::usage::read_src);
  const auto read = [&]() -> task<> {
    auto target = co_await filled(10, 'r');
    EXPECT_TRUE(failed_with(co_await failure_of(peer.read(target, source)), errc::closed));
  };
  const auto look_on = [&](scope& tasks) -> task<> {
    for (int i = 0; i < 20; ++i) tasks.spawn(read(), "a reader");
    co_await settle();
    int asked = 0;
    while (hand.take()) ++asked;
    EXPECT_EQ(asked, 16);
    hand.release();
    co_await expect_idle();
    peer.abort();
  };
  co_await with_scope(on_failure::report, look_on);
}

TEST_P_TO_PEER(shm_wake_up, is_not_needed_while_an_end_is_closed_that_waits_for_answers) {
  co_await send(peer);
  co_await send(peer);
  auto target = co_await filled(10, 'r');
  const mr::remote_slice source(0x1234, 0, 10, mr::usage::read_src);
  const auto read = [&]() -> task<> { static_cast<void>(co_await failure_of(peer.read(target, source))); };
  const auto look_on = [&](scope& tasks) -> task<> {
    tasks.spawn(read(), "the reader");
    co_await settle();
    tasks.spawn(peer.close(), "the end");
    co_await settle();
    take_all(hand);
    co_await expect_idle();
    hand.put_whole({.kind = record_kind::answer}, bytes(10));
    hand.say({.kind = record_kind::finished});
  };
  co_await with_scope(on_failure::report, look_on);
}

/// Counts the looks at the sockets of its executor's ends.
class shm_woken_end : public with_calls<failing_system_calls, against_manual_end> {
 protected:
  shm_woken_end() { calls.fail({{.of = system_call::epoll_wait}}); }
  [[nodiscard]] std::size_t looks() const { return calls.made(); }
};
WEFT_ON_BOTH_ENDS(shm_woken_end);

// What else wakes the executor in between makes it look as well, but not in every round.
TEST_P_TO_PEER(shm_woken_end, answers_before_it_looks_at_the_sockets) {
  int before = 0;
  for (int round = 0; round < 20; ++round) {
    std::size_t looks_asleep = 0;
    std::thread other([&] {
      while (hand.other().attention != shm::end_words::asleep) std::this_thread::yield();
      looks_asleep = looks();
      hand.send(bytes(100));
    });
    static_cast<void>(co_await peer.recv_or_throw());
    co_await send(peer);
    const std::size_t looks_at_the_answer = looks();
    other.join();
    if (looks_at_the_answer == looks_asleep) ++before;
    take_all(hand);
  }
  EXPECT_GT(before, 0);
}

// ---- ends that are left to their sockets

/// An end that has been quiet for long is no longer looked at by an executor that does not sleep.
class cold_end : public against_manual_end {
 protected:
  /// Keeps the executor from sleeping until it leaves our end to its socket.
  static task<> let_cool(manual_end& hand) {
    for (int i = 0; i < 100'000 && hand.other().attention != shm::end_words::asleep; ++i) co_await yield();
    EXPECT_EQ(hand.other().attention, shm::end_words::asleep);
  }
  /// Carries this out on an executor that does not sleep meanwhile.
  static task<> beside_a_busy_executor(task<> work) {
    bool done = false;
    const auto carry_out = [&]() -> task<> {
      co_await std::move(work);
      done = true;
    };
    const auto keep_awake = [&]() -> task<> {
      while (!done) co_await yield();
    };
    co_await when_all(carry_out(), keep_awake());
  }
};
WEFT_ON_BOTH_ENDS(cold_end);

TEST_P_TO_PEER(cold_end, hears_messages_beside_a_busy_executor) {
  for (int round = 0; round < 5; ++round) {
    co_await let_cool(hand);
    hand.send(bytes(100));
    co_await beside_a_busy_executor(expect_message(peer, 100));
  }
}

TEST_P_TO_PEER(cold_end, hears_that_its_peer_is_gone_beside_a_busy_executor) {
  co_await let_cool(hand);
  hand.socket().close();
  co_await beside_a_busy_executor(expect_end(peer, errc::peer_vanished));
}

TEST_P_TO_PEER(cold_end, hears_of_room_that_it_waits_for) {
  co_await let_cool(hand);
  bool done = false;
  const auto send_more_than_fits = [&]() -> task<> {
    for (int i = 0; i < 20; ++i) co_await send(peer, 60'000);
    done = true;
  };
  const auto take = [&]() -> task<> {
    while (!done) {
      co_await let_cool(hand);
      take_all(hand);
      for (int i = 0; i < 200 && !done; ++i) co_await yield();
    }
  };
  co_await when_all(send_more_than_fits(), take());
}

TEST_P_TO_PEER(cold_end, ends_for_a_peer_that_breaks_the_rules) {
  co_await let_cool(hand);
  hand.claim_written(UINT64_MAX);
  co_await beside_a_busy_executor(expect_end(peer, errc::protocol_error));
}

// ---- many ends on one executor

class shm_fairness : public against_manual_end {};
WEFT_ON_BOTH_ENDS(shm_fairness);

// Each has more for us in each turn than one turn takes.
TEST_P_TASK(shm_fairness, lets_others_have_their_turns_beside_peers_that_never_pause) {
  pair others = co_await connect_pair();
  std::vector<std::tuple<manual_end, net::connection>> busy;
  for (int i = 0; i < 8; ++i) busy.push_back(co_await connect_by_hand(accepts(), bytes(), {}));
  for (auto& [hand, victim] : busy) {
    hand.say({.kind = record_kind::send, .total = 10});
  }
  const auto refill = [&](manual_end& hand) {
    while (hand.own().written - hand.other().taken < 100'000) {
      for (int i = 0; i < 100; ++i) hand.say({.kind = record_kind::more});
    }
  };
  bool served = false;
  const auto flood = [&]() -> task<> {
    for (int turn = 0; turn < 2000 && !served; ++turn) {
      for (auto& [hand, victim] : busy) refill(hand);
      co_await yield();
    }
    EXPECT_TRUE(served);
    for (auto& [hand, victim] : busy) victim.abort();
  };
  const auto serve = [&]() -> task<> {
    for (int i = 0; i < 10; ++i) co_await expect_service(others);
    served = true;
  };
  co_await when_all(flood(), serve());
}

// ---- two executors, in threads of their own

/// Counts the packets that an executor sends.
class counting_calls final : public system_calls {
 public:
  ssize_t sendmsg(int fd, const msghdr* message, int flags) noexcept override {
    if (message->msg_controllen == 0) sent.fetch_add(1, std::memory_order_relaxed);
    return system_calls::sendmsg(fd, message, flags);
  }
  std::atomic<std::uint64_t> sent{0};
};

class shm_threads : public testing::TestWithParam<poll_policy> {
 protected:
  using work = std::function<task<>(net::connection&)>;

  /// Runs these with the ends of a connection, each on an executor in a thread of its own, and closes it. Yields how
  /// many packets each of these has sent. Each of the many thousand wake-ups of an exchange may have to wait until
  /// another program's slice of the processor is over.
  static std::pair<std::uint64_t, std::uint64_t> exchange(net::device& device, const work& here, const work& there,
                                                          net::connection_options how = {}) {
    const scratch_directory directory;
    std::atomic<bool> listening{false};
    std::uint64_t there_sent = 0;
    std::thread other([&] {
      there_sent = on_an_executor([&]() -> task<> {
        auto listener = co_await device.listen(directory.address());
        listening = true;
        listening.notify_one();
        auto request = co_await listener.next();
        auto peer = co_await request->accept(how);
        co_await there(peer);
        co_await peer.close();
      });
    });
    listening.wait(false);
    const std::uint64_t here_sent = on_an_executor([&]() -> task<> {
      auto peer = co_await device.connect(directory.address(), how);
      co_await here(peer);
      co_await peer.close();
    });
    other.join();
    return {here_sent, there_sent};
  }

 private:
  template <class Script>
  static std::uint64_t on_an_executor(Script script) {
    counting_calls calls;
    executor home({.policy = GetParam(), .system_calls = &calls});
    home.run(with_timeout(1000s, script()));
    return calls.sent;
  }
};
INSTANTIATE_TEST_SUITE_P(shm, shm_threads, testing::Values(poll_policy::sleep, poll_policy::adaptive),
                         [](const testing::TestParamInfo<poll_policy>& which) {
                           return which.param == poll_policy::sleep ? "that_sleep_at_once" : "that_spin_first";
                         });

TEST_P(shm_threads, lose_no_wake_up_in_a_long_exchange_of_messages) {
  constexpr int rounds = sanitized ? 3000 : 20'000;
  net::device device = net::device::open("shm");
  const auto fill_pause = [](std::minstd_rand& numbers) -> task<> {
    for (auto i = numbers() % 4; i > 1; --i) co_await yield();
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    std::minstd_rand numbers(2);
    for (int i = 0; i < rounds; ++i) {
      auto question = co_await device.allocate(8 + numbers() % 3000);
      const std::size_t size = question.size();
      co_await peer.send(std::move(question));
      co_await fill_pause(numbers);
      const auto answer = co_await peer.recv_or_throw();
      EXPECT_EQ(answer.size(), size);
    }
  };
  const auto reply = [&](net::connection& peer) -> task<> {
    std::minstd_rand numbers(1);
    while (auto message = co_await peer.recv()) {
      co_await fill_pause(numbers);
      co_await peer.send(std::move(message->payload));
    }
  };
  const auto [here_sent, there_sent] = exchange(device, ask, reply);
  // At most one for each message, and one for each that was taken.
  EXPECT_LE(here_sent, 2 * rounds + 10U);
  EXPECT_LE(there_sent, 2 * rounds + 10U);
}

// Each end waits for room in its ring from time to time, while the other may sleep.
TEST_P(shm_threads, lose_no_wake_up_when_both_rings_fill_up) {
  constexpr int rounds = sanitized ? 100 : 500;
  net::device device = net::device::open("shm", {.shm = {.ring_bytes = std::size_t{16} << 10}});
  const auto send_all = [&](net::connection& peer, unsigned seed) -> task<> {
    std::minstd_rand numbers(seed);
    for (int i = 0; i < rounds; ++i) {
      auto message = co_await device.allocate(8 + numbers() % 29'000);
      co_await peer.send(std::move(message));
    }
  };
  const auto receive_all = [&](net::connection& peer, unsigned seed) -> task<> {
    std::minstd_rand numbers(seed);
    for (int i = 0; i < rounds; ++i) {
      const auto message = co_await peer.recv_or_throw();
      EXPECT_EQ(message.size(), 8 + numbers() % 29'000);
    }
  };
  const auto here = [&](net::connection& peer) -> task<> {
    co_await when_all(send_all(peer, 4), receive_all(peer, 3));
  };
  const auto there = [&](net::connection& peer) -> task<> {
    co_await when_all(send_all(peer, 3), receive_all(peer, 4));
  };
  exchange(device, here, there, {.receive_size = 30'000});
}

}  // namespace
}  // namespace weft::test
