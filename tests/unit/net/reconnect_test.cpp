// SPDX-License-Identifier: Apache-2.0
// Connecting again and again, on virtual time.
#include <weft/net/reconnect.hpp>

#include <future>

#include "kit/other_thread.hpp"
#include "net/support.hpp"

namespace weft::test {
namespace {

using std::chrono::milliseconds;

TEST(back_off, doubles_up_to_the_longest_pause_and_draws_from_the_upper_half) {
  net::retry_options when{.first_pause = 100ms, .max_pause = 500ms};
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    when.seed = seed;
    net::back_off pauses(when);
    for (const milliseconds bound : {100ms, 200ms, 400ms, 500ms, 500ms}) {
      const duration pause = pauses.next();
      EXPECT_GE(pause, bound / 2);
      EXPECT_LE(pause, bound);
    }
  }
}

TEST(back_off, differs_from_one_client_to_the_next_and_repeats_with_a_seed) {
  net::retry_options when;
  net::back_off one(when);
  net::back_off other(when);
  EXPECT_NE(std::make_pair(one.next(), one.next()), std::make_pair(other.next(), other.next()));
  when.seed = 7;
  EXPECT_EQ(net::back_off(when).next(), net::back_off(when).next());
}

TEST(back_off, of_any_options_makes_sense) {
  net::retry_options when{.first_pause = -1ms, .max_pause = 0ms};
  net::back_off smallest(when);
  for (int i = 0; i < 10; ++i) EXPECT_LE(smallest.next(), 1ms);
  when.first_pause = when.max_pause = std::chrono::hours(24 * 365);
  net::back_off largest(when);
  for (int i = 0; i < 10; ++i) EXPECT_GT(largest.next(), std::chrono::hours(24 * 180));
  when.first_pause = when.max_pause = milliseconds::max();
  net::back_off endless(when);
  for (int i = 0; i < 10; ++i) EXPECT_GE(endless.next(), duration::max() / 2);
}

TEST(may_heal, what_time_can_mend) {
  for (const int number : {ECONNREFUSED, ECONNRESET, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EHOSTDOWN, EAGAIN, EMFILE}) {
    EXPECT_TRUE(net::may_heal(system_error(number, "connect"))) << number;
  }
  for (const errc code : {errc::timed_out, errc::peer_vanished, errc::no_memory}) {
    EXPECT_TRUE(net::may_heal(error(code))) << error(code).what();
  }
}

TEST(may_heal, not_what_only_a_person_can) {
  for (const int number : {EACCES, EINVAL, EAFNOSUPPORT}) EXPECT_FALSE(net::may_heal(system_error(number, "connect")));
  for (const errc code : {errc::invalid_address, errc::invalid_argument, errc::peer_rejected, errc::protocol_error,
                          errc::canceled, errc::not_supported, errc::wrong_device, errc::wrong_thread}) {
    EXPECT_FALSE(net::may_heal(error(code))) << error(code).what();
  }
}

// No socket is to be had for the first so many times.
class short_of_sockets final : public system_calls {
 public:
  explicit short_of_sockets(clock& time) noexcept : time_(time) {}
  unsigned failures = 0;
  int number = ENETUNREACH;
  std::vector<time_point> attempts;

  int socket(int domain, int type, int protocol) noexcept override {
    const bool failing = attempts.size() < failures;
    attempts.push_back(time_.now());
    return failing ? -number : system_calls::socket(domain, type, protocol);
  }

 private:
  clock& time_;
};

class reconnecting : public testing::Test {
 protected:
  reconnecting() : calls_(time_), home_({.clock = &time_, .system_calls = &calls_}) { pauses_.seed = 1; }

  /// What connect_with_retry() says; until there are sockets again, time passes.
  std::optional<error> connect(const std::string& address) {
    std::optional<error> failure;
    const auto body = [&]() -> task<> {
      static_cast<void>(co_await device_.pool().allocate(1, mr::budget::receive));  // so that no worker is waited for
      started_ = home_.now();
      bool ended = false;
      const auto attempt = [&]() -> task<> {
        failure = co_await failure_of(net::connect_with_retry(device_, address, options_, pauses_));
        ended = true;
      };
      const auto let_time_pass = [&]() -> task<> {
        while (!ended && calls_.attempts.size() <= calls_.failures) {
          time_.advance(1ms);
          co_await yield();
        }
      };
      co_await when_all(attempt(), let_time_pass());
    };
    home_.run(body());
    return failure;
  }

  manual_clock time_;
  short_of_sockets calls_;
  net::device device_ = net::device::open("iwarp");
  executor home_;
  net::connection_options options_{.receive_size = 64, .receive_depth = 1};
  net::retry_options pauses_;
  time_point started_;
};

TEST_F(reconnecting, pauses_as_the_back_off_says_and_gives_up_in_time) {
  calls_.failures = 1000;
  pauses_.give_up_after = 10s;
  const auto failure = connect("127.0.0.1:1");
  ASSERT_TRUE(failure);
  EXPECT_TRUE(failed_with(failure, std::errc::network_unreachable));
  net::back_off expected(pauses_);
  ASSERT_GT(calls_.attempts.size(), 5u);
  for (std::size_t i = 1; i < calls_.attempts.size(); ++i) {
    const duration gap = calls_.attempts[i] - calls_.attempts[i - 1];
    const duration pause = expected.next();
    EXPECT_GE(gap, pause) << i;
    EXPECT_LT(gap, pause + 20ms) << i;
  }
  EXPECT_LE(home_.now() - started_, pauses_.give_up_after);
  EXPECT_TRUE(contains(failure, "gave up after " + std::to_string(calls_.attempts.size()) + " attempts in "));
  EXPECT_TRUE(contains(failure, "connect to 127.0.0.1:1 over iwarp: open a TCP socket: ")) << failure->what();
}

TEST_F(reconnecting, gives_up_after_so_many_attempts) {
  calls_.failures = 1000;
  pauses_.max_attempts = 3;
  EXPECT_TRUE(contains(connect("127.0.0.1:1"), "gave up after 3 attempts"));
  EXPECT_EQ(calls_.attempts.size(), 3u);
}

TEST_F(reconnecting, gives_up_at_once_where_time_mends_nothing) {
  calls_.failures = 1000;
  calls_.number = EACCES;
  EXPECT_TRUE(contains(connect("127.0.0.1:1"), "gave up after 1 attempt in 0.0 s"));
  EXPECT_EQ(calls_.attempts.size(), 1u);
  calls_.attempts.clear();
  const auto nonsense = connect("nonsense");
  EXPECT_TRUE(failed_with(nonsense, errc::invalid_address));
  const bytes much(100);
  options_.private_data = much;
  const auto too_much = connect("127.0.0.1:1");
  EXPECT_TRUE(failed_with(too_much, errc::invalid_argument));
  EXPECT_TRUE(calls_.attempts.empty());
}

TEST_F(reconnecting, succeeds_once_the_network_is_back) {
  net::device server = net::device::open("iwarp");
  std::promise<std::string> address;
  std::future<std::string> where = address.get_future();
  other_thread serving([&, address = std::move(address)](const std::stop_token& left_early) mutable {
    executor there;
    const auto root = [&]() -> task<> {
      auto listener = co_await server.listen("127.0.0.1:0");
      address.set_value(std::string(listener.address()));
      auto request = co_await listener.next();
      auto peer = co_await request->accept(options_);
      static_cast<void>(co_await peer.recv());
    };
    there.run(root(), left_early);
  });
  calls_.failures = 3;
  const auto failure = connect(where.get());
  ASSERT_FALSE(failure) << failure->what();
  EXPECT_EQ(calls_.attempts.size(), 4u);
  serving.join();
}

// As a program that was stopped: the peer has listened all the while, and nobody has asked.
TEST_F(reconnecting, has_time_for_the_attempt_that_was_due_while_it_was_away) {
  pauses_.give_up_after = 10s;
  const auto body = [&]() -> task<> {
    static_cast<void>(co_await device_.pool().allocate(1, mr::budget::receive));
    auto listener = co_await device_.listen("127.0.0.1:0");
    calls_.attempts.clear();
    calls_.failures = 1;
    const auto reach = [&]() -> task<> {
      auto peer = co_await net::connect_with_retry(device_, std::string(listener.address()), options_, pauses_);
      co_await peer.close();
    };
    const auto serve = [&]() -> task<> {
      auto peer = co_await listener.accept(options_);
      static_cast<void>(co_await peer->recv());
    };
    const auto be_away = [&]() -> task<> {
      while (calls_.attempts.empty()) co_await yield();
      co_await settle();
      time_.advance(1h);
    };
    co_await when_all(reach(), serve(), be_away());
  };
  home_.run(body());
  EXPECT_EQ(calls_.attempts.size(), 2u);
}

TEST_F(reconnecting, is_over_at_once_when_it_is_stopped) {
  calls_.failures = 1000;
  const auto body = [&]() -> task<> {
    static_cast<void>(co_await device_.pool().allocate(1, mr::budget::receive));
    const auto wait = [&]() -> task<> {
      while (calls_.attempts.empty()) co_await yield();
      co_await settle();
      time_.advance(1ms);
    };
    const auto both = co_await when_all(
        failure_of(with_timeout(1ms, net::connect_with_retry(device_, "127.0.0.1:1", options_, pauses_))), wait());
    const auto& failure = std::get<0>(both);
    EXPECT_TRUE(failed_with(failure, errc::timed_out, "connect to 127.0.0.1:1 over iwarp"));
  };
  home_.run(body());
  EXPECT_EQ(calls_.attempts.size(), 1u);
}

}  // namespace
}  // namespace weft::test
