// SPDX-License-Identifier: Apache-2.0
// Heartbeats: a peer whose program hangs is told from one that has nothing to say. On a clock that jumps.

#include "net/support.hpp"

namespace weft::test {
namespace {

constexpr std::uint8_t heartbeat = 5;
constexpr auto period = 100s;  // so long that no test takes it

class heartbeats : public net_test {
 protected:
  /// Runs `script(raw, connection)` with a peer made by hand, whose greeting says whether it answers heartbeats.
  template <class Script>
  void with_a_peer(bool answers, std::chrono::milliseconds beat, Script script) {
    const auto begin = [&]() -> task<> {
      begin_a_period();
      co_return;
    };
    run(begin);
    const bytes greeting = answers ? greeting_with(5, 0x10) : greeting_bytes();
    against_raw_client(script, {.greeting = greeting, .ours = {.heartbeat = beat}});
  }

  /// Beats fall on the multiples of their period. After one of them, none comes by itself while a test lasts, beside
  /// those for which the test jumps.
  void begin_a_period() {
    const duration since_the_last = executor::current()->now().time_since_epoch() % period;
    jump(period - since_the_last);
  }

  task<> let_pass(int beats) {
    for (int i = 0; i < beats; ++i) {
      jump(period);
      co_await settle();
    }
  }

  /// The connection has taken in what was sent to it: it has answered a read of nothing that came behind.
  static task<> let_arrive(raw_peer& raw) {
    co_await raw.read(0, 0, 0);
    EXPECT_FALSE((co_await raw.receive_fpdu()).empty());
    co_await settle();
  }

  /// The kind of the next message that the peer gets.
  static task<int> next_kind(raw_peer& raw) {
    const bytes ulpdu = co_await raw.receive_fpdu();
    if (ulpdu.size() < net::trailer::bytes) co_return 0;
    co_return std::to_integer<int>(ulpdu[ulpdu.size() - net::trailer::bytes]);
  }

  /// What a peer answers with, as the n-th message that it sends.
  static bytes nth_answer(std::uint32_t n) {
    return untagged_ulpdu({.opcode = net::iwarp::opcode::send, .sequence = n},
                          trailer_bytes({.kind = net::message_kind::credits, .credits = greeted_depth}));
  }
};

#define TEST_F_WITH_PEER(fixture, name, answers, beat)                                                     \
  TEST_F_SCRIPT(fixture, name, ([[maybe_unused]] raw_peer & raw, [[maybe_unused]] net::connection & peer), \
                with_a_peer(answers, beat, WEFT_SCRIPT))

TEST_F_WITH_PEER(heartbeats, a_peer_that_answers_none_has_vanished, true, period) {
  EXPECT_TRUE(peer.capabilities().heartbeats);
  const auto both = co_await when_all(failure_of(peer.recv()), let_pass(5));
  const std::optional<error>& failure = std::get<0>(both);
  EXPECT_TRUE(failed_with(failure, errc::peer_vanished, "its program hangs or is stopped"));
  EXPECT_EQ(co_await next_kind(raw), heartbeat) << "it was asked first";
}

TEST_F_WITH_PEER(heartbeats, a_peer_that_answers_with_any_message_stays, true, period) {
  for (const std::uint8_t answer : {credits_kind, data_kind}) {
    co_await let_pass(2);
    EXPECT_EQ(co_await next_kind(raw), heartbeat);
    co_await raw.send_message(nothing, answer, greeted_depth);
    co_await let_arrive(raw);  // before the clock jumps on
  }
  EXPECT_TRUE(co_await peer.recv());
  co_await let_pass(1);
  co_await raw.send_message(nothing, data_kind, greeted_depth);
  EXPECT_TRUE(co_await peer.recv());
}

// Tasks that are ready keep an executor over epoll from its sockets for some turns, each of which takes longer than a
// period here.
TEST_F_WITH_PEER(heartbeats, a_peer_whose_answers_wait_for_an_end_that_computes_stays, true, period) {
  for (std::uint32_t turn = 1; turn <= 8; ++turn) {
    raw.send_now(raw.fpdu(nth_answer(turn)));
    jump(period + 10ms);
    co_await yield();
  }
  EXPECT_TRUE(peer.is_open());
}

TEST_F_WITH_PEER(heartbeats, a_peer_that_talks_is_not_asked, true, period) {
  for (int i = 0; i < 5; ++i) {
    co_await raw.send_message(nothing, data_kind, greeted_depth);
    EXPECT_TRUE(co_await peer.recv());
    co_await let_pass(1);
  }
  co_await peer.send(co_await pool().allocate(1));
  EXPECT_EQ(co_await next_kind(raw), data_kind);
}

TEST_F_WITH_PEER(heartbeats, a_peer_that_knows_none_is_not_asked_and_not_given_up, false, period) {
  EXPECT_FALSE(peer.capabilities().heartbeats);
  co_await let_pass(8);
  co_await peer.send(co_await pool().allocate(1));
  EXPECT_EQ(co_await next_kind(raw), data_kind) << "nothing was sent before";
}

TEST_F_WITH_PEER(heartbeats, are_not_sent_unless_they_are_wanted, true, 0s) {
  co_await let_pass(8);
  co_await peer.send(co_await pool().allocate(1));
  EXPECT_EQ(co_await next_kind(raw), data_kind) << "nothing was sent before";
}

TEST_F(heartbeats, of_the_peer_are_answered_whoever_wants_any) {
  for (const bool wants : {false, true}) {
    with_a_peer(wants, wants ? std::chrono::milliseconds(period) : 0ms, [&](raw_peer& raw, net::connection&) -> task<> {
      for (int i = 0; i < 3; ++i) {
        co_await raw.send_message(nothing, heartbeat, greeted_depth);
        EXPECT_EQ(co_await next_kind(raw), credits_kind);
      }
    });
  }
}

TEST_F_WITH_PEER(heartbeats, any_number_of_them_breaks_nothing, false, 0s) {
  for (int i = 0; i < 100; ++i) co_await raw.send_message(nothing, heartbeat, greeted_depth);
  co_await raw.send_message(nothing, data_kind, greeted_depth);
  EXPECT_TRUE(co_await peer.recv()) << "it has not broken the protocol";
}

TEST_F_TASK(heartbeats, of_both_ends_keep_many_idle_connections) {
  auto listener = co_await listen();
  std::vector<net::connection> ends;
  const net::connection_options how{.heartbeat = period};
  for (int i = 0; i < 4; ++i) {
    auto both = co_await when_all(device().connect(std::string(listener.address()), how), accept(listener, how));
    ends.push_back(std::move(std::get<0>(both)));
    ends.push_back(std::move(std::get<1>(both)));
    jump(period / 8);  // they are not as old as one another
  }
  co_await let_pass(8);  // with all of them answering one another
  for (const net::connection& each : ends) EXPECT_TRUE(each.capabilities().heartbeats);
  for (std::size_t i = 0; i < ends.size(); i += 2) {
    co_await ends[i].send(co_await pool().allocate(1));
    EXPECT_TRUE(co_await ends[i + 1].recv());
  }
}

}  // namespace
}  // namespace weft::test
