// SPDX-License-Identifier: Apache-2.0
// Set-ups whose task is destroyed while it waits for a peer that says nothing. The kernel may use the socket and the
// memory for a moment longer; the address sanitizer sees whether they are there then.
#include <weft/net/stream.hpp>

#include "net/support.hpp"

namespace weft::test {
namespace {

// Turns that a task waits before it is destroyed. With none, the kernel has not been told of its operation.
constexpr std::array<int, 5> some_turns = {0, 1, 2, 3, 20};

sim::loose_task connect_loosely(net::device& from, std::string address) {
  static_cast<void>(co_await failure_of(from.connect(std::move(address))));
}

sim::loose_task connect_stream_loosely(net::device& from, std::string address) {
  static_cast<void>(co_await failure_of(net::stream::connect(from, std::move(address))));
}

sim::loose_task accept_loosely(net::connection_request request) {
  static_cast<void>(co_await failure_of(request.accept()));
}

task<> until_at_rest(const sim::loose_task& waiting, int turns) {
  for (int i = 0; i < turns || !waiting.at_rest(); ++i) co_await yield();
}

task<> until_no_more_sockets(std::size_t count) {
  while (open_descriptors("socket:") != count) co_await yield();
}

class destroyed_set_up : public net_test {
 protected:
  /// After that the pool has memory, so that no set-up waits for it.
  void warm_up() {
    run([&]() -> task<> {
      auto listener = co_await listen();
      co_await expect_service(listener);
    });
  }
  /// A peer has connected and sent its request.
  task<net::connection_request> next_of(net::listener& listener, raw_peer& raw) {
    const bytes request = request_frame();
    co_await raw.send(request);
    auto asked = co_await listener.next();
    co_return *std::move(asked);
  }
  /// The peer has the reply, and does not say that it is ready.
  static task<> be_accepted(raw_peer& raw, const sim::loose_task& accepting) {
    accepting.start(*executor::current());
    bytes reply(reply_frame().size());
    co_await raw.receive(reply);
  }
  void expect_no_set_ups() {
    EXPECT_EQ(device().statistics().set_ups, 0U);
    EXPECT_EQ(device().statistics().half_open, 0U);
  }
};

TEST_F_TASK(destroyed_set_up, of_an_acceptor_whose_peer_never_gets_ready_closes_the_socket_and_troubles_nobody) {
  auto listener = co_await listen();
  for (const int turns : some_turns) {
    raw_peer raw = raw_peer::connect(listener.address());
    auto request = co_await next_of(listener, raw);
    {
      const auto accepting = accept_loosely(std::move(request));
      co_await be_accepted(raw, accepting);
      co_await until_at_rest(accepting, turns);
      EXPECT_EQ(accepting.waits_for(), "a wait for readiness");
    }
    static_cast<void>(co_await raw.receive_rest());
    expect_no_set_ups();
  }
  co_await expect_service(listener);
}

TEST_F_TASK(destroyed_set_up, of_a_connector_whose_peer_has_sent_any_part_of_its_reply_closes_the_socket) {
  raw_listener listener;
  const bytes reply = reply_frame();
  for (const std::size_t sent : {std::size_t{0}, std::size_t{1}, reply.size() / 2, reply.size() - 1}) {
    for (const int turns : some_turns) {
      std::optional<raw_peer> raw;
      {
        const auto connecting = connect_loosely(device(), listener.address());
        connecting.start(*executor::current());
        raw = co_await listener.accept();
        static_cast<void>(co_await raw->answer(std::span(reply).first(sent)));
        co_await until_at_rest(connecting, turns);
        EXPECT_EQ(connecting.waits_for(), "a receive");
      }
      static_cast<void>(co_await raw->receive_rest());
      expect_no_set_ups();
    }
  }
}

TEST_F(destroyed_set_up, of_a_connector_whose_peer_swallows_everything_closes_the_socket) {
  warm_up();
  const deaf_listener deaf;
  const std::size_t sockets = open_descriptors("socket:");
  run([&]() -> task<> {
    for (const int turns : some_turns) {
      for (const bool stream : {false, true}) {
        {
          const auto connecting = stream ? connect_stream_loosely(device(), "tcp://" + deaf.address())
                                         : connect_loosely(device(), deaf.address());
          connecting.start(*executor::current());
          co_await until_at_rest(connecting, turns);
          EXPECT_EQ(connecting.waits_for(), "a connect");
        }
        co_await until_no_more_sockets(sockets);
      }
    }
    expect_no_set_ups();
  });
}

// Its operation has been asked to end then, and may have.
TEST_F_TASK(destroyed_set_up, whose_time_is_up_at_any_turn_closes_the_socket) {
  auto listener = co_await listen();
  const std::size_t sockets = open_descriptors("socket:");
  bool ended = false;
  for (int turns = 0; !ended; ++turns) {
    raw_peer raw = raw_peer::connect(listener.address());
    auto request = co_await next_of(listener, raw);
    {
      const auto accepting = accept_loosely(std::move(request));
      co_await be_accepted(raw, accepting);
      co_await until_at_rest(accepting, 0);
      let_set_ups_time_out();
      co_await until_at_rest(accepting, turns);
      ended = accepting.ended();
    }
    static_cast<void>(co_await raw.receive_rest());
    raw.close();
    co_await until_no_more_sockets(sockets);
  }
  expect_no_set_ups();
}

TEST_F(destroyed_set_up, has_closed_the_socket_before_run_returns) {
  warm_up();
  const deaf_listener deaf;
  const std::size_t sockets = open_descriptors("socket:");
  for (const int turns : some_turns) {
    run([&]() -> task<> {
      const auto connecting = connect_loosely(device(), deaf.address());
      connecting.start(*executor::current());
      co_await until_at_rest(connecting, turns);
      EXPECT_EQ(connecting.waits_for(), "a connect");
    });
    EXPECT_EQ(open_descriptors("socket:"), sockets);
  }
}

TEST_F(destroyed_set_up, of_an_executor_at_rest_closes_the_socket_at_once) {
  warm_up();
  const deaf_listener deaf;
  const std::size_t sockets = open_descriptors("socket:");
  for (const int turns : some_turns) {
    std::optional<sim::loose_task> connecting(connect_loosely(device(), deaf.address()));
    run([&]() -> task<> {
      connecting->start(*executor::current());
      co_await until_at_rest(*connecting, turns);
    });
    EXPECT_EQ(connecting->waits_for(), "a connect");
    connecting.reset();
    EXPECT_EQ(open_descriptors("socket:"), sockets);
  }
}

}  // namespace
}  // namespace weft::test
