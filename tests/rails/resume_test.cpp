// SPDX-License-Identifier: Apache-2.0
// A connection that waits for its links: connection_options::resume_within.
#include "ends.hpp"
#include "kit/clock.hpp"
#include "kit/expect_failure.hpp"

namespace weft::test {
namespace {

using namespace std::chrono_literals;

net::connection_options resuming(std::chrono::milliseconds within = forever) {
  net::connection_options how{.resume_within = within};
  return how;
}

// Two devices, each of which may be replaced as by a process that starts anew, and the cable between them.
class resumption : public testing::Test {
 protected:
  [[nodiscard]] net::device open() const {
    std::vector<std::unique_ptr<net::transport>> ways;
    ways.push_back(
        std::make_unique<breakable_transport>("iwarp", cable_, net::iwarp::open_transport({.checksum = false})));
    return net::device::open(net::rails::open_transport(std::move(ways)), {});
  }
  // One that knows nothing of rails.
  [[nodiscard]] static net::device open_plain() {
    return net::device::open(net::iwarp::open_transport({.checksum = false}), {});
  }
  struct pair {
    net::connection client;
    net::connection server;
  };
  task<pair> connect(net::listener& listener, net::connection_options at_client, net::connection_options at_server) {
    auto [client, server] =
        co_await when_all(client_.connect(std::string(listener.address()), at_client), accept_one(listener, at_server));
    co_return pair{std::move(client), std::move(server)};
  }
  // Runs the script on a connection whose ends wait so long.
  void between_ends(const test_script<pair&>& script, net::connection_options at_client = resuming(),
                    net::connection_options at_server = resuming()) {
    run([&]() -> task<> {
      net::listener listener = co_await server_.listen(own_loopback() + ":0");
      pair both = co_await connect(listener, at_client, at_server);
      co_await script(both);
    });
  }
  template <class Script>
  void run(Script script) {
    home_.run(with_timeout(forever, script()));
  }
  static task<mr::buffer> filled(net::device& at, std::size_t bytes, unsigned char with) {
    return filled_with(at.pool(), bytes, std::byte{with});
  }
  task<net::exposure> expose(net::connection& at, std::size_t bytes) {
    auto memory = co_await filled(server_, bytes, 0);
    co_return co_await at.expose(std::move(memory), open_wide);
  }
  task<> send_one(net::connection& over, unsigned char with) {
    co_await over.send(co_await filled(client_, 100, with));
  }

  const std::shared_ptr<cable> cable_ = std::make_shared<cable>();
  net::device client_ = open();
  net::device server_ = open();
  executor home_;
};

// ---- it goes on ----

#define TEST_F_RESUMING(fixture, name) TEST_F_SCRIPT(fixture, name, (pair & both), between_ends(WEFT_SCRIPT))

TEST_F(resumption, a_connection_of_one_link_goes_on_where_it_was) {
  for (const unsigned at : {1u, 2u, 9u, 20u}) {
    SCOPED_TRACE(at);
    between_ends([&](pair& both) -> task<> {
      EXPECT_TRUE(both.client.capabilities().resumes);
      EXPECT_TRUE(both.server.capabilities().resumes);
      const auto target = co_await expose(both.server, mebibyte);
      unsigned seen = 0;
      cable_->is_cut_before = [&](const net::work_request&) { return ++seen == at; };
      constexpr unsigned char count = 30;
      const auto sending = [&]() -> task<> {
        for (unsigned char i = 0; i < count; ++i) {
          co_await both.client.write(co_await filled(client_, mebibyte, i), target.remote());
          co_await send_one(both.client, i);
        }
      };
      const auto receiving = [&]() -> task<> {
        for (unsigned char i = 0; i < count; ++i) {
          const auto message = co_await both.server.recv_or_throw();
          EXPECT_TRUE(message.size() == 100 && is_all(message.bytes(), std::byte{i})) << int{i};
        }
        EXPECT_TRUE(is_all(target.memory().bytes(), std::byte{count - 1}));
      };
      co_await when_all(sending(), receiving());
      EXPECT_GE(seen, at);
      EXPECT_GE(cable_->made, 4u);
    });
    cable_->made = 0;
  }
}

TEST_F(resumption, a_cut_before_the_first_message_of_either_end_loses_nothing) {
  cable_->is_cut_before = [](const net::work_request&) { return true; };
  between_ends([&](pair& both) -> task<> {
    cable_->is_cut_before = nullptr;
    cable_->cut();
    const auto receiving = [&]() -> task<> {
      EXPECT_TRUE(is_all((co_await both.server.recv_or_throw()).bytes(), std::byte{7}));
    };
    co_await when_all(send_one(both.client, 7), receiving());
    EXPECT_GE(cable_->made, 4u);
  });
}

// As a program that was stopped: nobody was asked in the time that is over, and the peer has waited.
TEST_F(resumption, is_tried_by_an_end_that_was_away_until_its_time_was_over) {
  manual_clock time;
  executor home({.clock = &time});
  const auto script = [&]() -> task<> {
    net::listener listener = co_await server_.listen(own_loopback() + ":0");
    pair both = co_await connect(listener, resuming(5s), resuming());
    cable_->cut();
    while (!cable_->links.empty()) co_await yield();
    time.advance(6s);
    const auto receiving = [&]() -> task<> {
      EXPECT_TRUE(is_all((co_await both.server.recv_or_throw()).bytes(), std::byte{7}));
    };
    co_await when_all(send_one(both.client, 7), receiving());
  };
  home.run(script());
}

TEST_F(resumption, is_not_tried_for_longer_by_an_end_that_was_away) {
  manual_clock time;
  executor home({.clock = &time});
  const auto script = [&]() -> task<> {
    net::listener listener = co_await server_.listen(own_loopback() + ":0");
    pair both = co_await connect(listener, resuming(5s), resuming());
    cable_->is_down = true;
    cable_->cut();
    std::optional<error> failure;
    const auto sending = [&]() -> task<> { failure = co_await failure_of(send_one(both.client, 7)); };
    const auto coming_back = [&]() -> task<> {
      while (!cable_->links.empty()) co_await yield();
      while (!failure) {
        time.advance(6s);
        for (int turn = 0; turn < 70; ++turn) co_await yield();
      }
    };
    co_await when_all(sending(), coming_back());
    EXPECT_NE(words_of(failure).find("no rail has come back within 5000 ms"), std::string::npos);
    both.server.abort();
  };
  home.run(script());
}

TEST_F_RESUMING(resumption, goes_on_although_the_answer_to_an_attempt_was_lost) {
  const auto target = co_await expose(both.server, 100);
  for (unsigned char round = 1; round < 4; ++round) {
    cable_->lost_answers = round;
    cable_->cut();
    co_await both.client.write(co_await filled(client_, 100, round), target.remote());
    co_await send_one(both.client, round);
    const auto message = co_await both.server.recv_or_throw();
    EXPECT_TRUE(is_all(target.memory().bytes(), std::byte{round}));
    EXPECT_EQ(cable_->lost_answers, 0u);
  }
}

TEST_F_RESUMING(resumption, operations_that_wait_for_a_link_are_stopped_as_usual) {
  const auto target = co_await expose(both.server, 100);
  cable_->is_down = true;
  cable_->cut();
  auto source = co_await filled(client_, 100, 1);
  EXPECT_EQ(co_await code_of(with_timeout(20ms, both.client.write(source, target.remote()))), errc::timed_out);
  cable_->is_down = false;
  co_await both.client.write(co_await filled(client_, 100, 2), target.remote());
  EXPECT_TRUE(is_all(target.memory().bytes(), std::byte{2}));
}

// What was exposed while nothing got through, and taken back since, leaves places between those that are told of.
TEST_F_RESUMING(resumption, goes_on_with_memory_that_was_exposed_while_nothing_got_through) {
  cable_->is_silent = true;
  std::vector<net::exposure> open;
  for (int i = 0; i < 400; ++i) open.push_back(co_await expose(both.server, 16));
  for (int i = 0; i < 399; ++i) static_cast<void>(co_await open[static_cast<std::size_t>(i)].revoke());
  cable_->is_silent = false;
  cable_->cut();
  co_await both.client.write(co_await filled(client_, 16, 1), open.back().remote());
  EXPECT_TRUE(is_all(open.back().memory().bytes(), std::byte{1}));
}

// The peer's device opens one key after the other, and the client asks for the next as soon as it has one.
TEST_F_RESUMING(resumption, asks_for_as_many_keys_as_the_peer_opens_anew) {
  constexpr std::size_t count = 20;
  std::vector<net::exposure> targets;
  for (std::size_t i = 0; i < count; ++i) targets.push_back(co_await expose(both.server, 16));
  auto source = co_await filled(client_, 16, 1);
  const std::size_t before = cable_->exposing;
  std::size_t asked = 0;
  event opens;
  cable_->exposes = &opens;
  cable_->cut();
  cable_->is_cut_before = [&](const net::work_request& work) {
    if (says(work, net::rails::control_kind::names)) ++asked;
    return false;
  };
  const auto write = [&](std::size_t i) -> task<> { co_await both.client.write(source, targets[i].remote()); };
  const auto open_each = [&]() -> task<> {
    for (std::size_t i = 0; i < count; ++i) {
      while (asked <= i || cable_->exposing <= before + i) co_await yield();
      opens.set();
      opens.reset();
    }
  };
  co_await with_scope(on_failure::stop_siblings, [&](scope& all) -> task<> {
    for (std::size_t i = 0; i < count; ++i) all.spawn(write(i));
    all.spawn(open_each());
    co_return;
  });
  cable_->exposes = nullptr;
  cable_->is_cut_before = nullptr;
  for (const net::exposure& each : targets) EXPECT_TRUE(is_all(each.memory().bytes(), std::byte{1}));
}

TEST_F(resumption, is_not_kept_out_by_requests_that_nobody_takes) {
  constexpr std::size_t places = 8;
  constexpr std::size_t strays = 30;
  std::size_t turned_away = 0;
  bool is_over = false;
  manual_clock time;  // stands until all have been answered, because a request that takes long loses its place
  executor home({.clock = &time});
  const auto let_time_pass = [&]() -> task<> {
    while (!is_over) {
      time.advance(1ms);
      co_await yield();
    }
  };
  const auto script = [&]() -> task<> {
    std::optional<net::listener> listener(co_await server_.listen(own_loopback() + ":0", {.max_half_open = places}));
    const std::string address(listener->address());
    pair both = co_await connect(*listener, resuming(), resuming());
    const auto stranger = net::iwarp::open_transport({.checksum = false});
    const auto ask = [&]() -> task<> {
      net::set_up_options how;
      how.deadline = later(clock::steady().now(), forever);
      if (co_await code_of(stranger->connect(address, how)) == std::errc::no_buffer_space) ++turned_away;
    };
    co_await with_scope(on_failure::stop_siblings, [&](scope& all) -> task<> {
      for (std::size_t i = 0; i < strays; ++i) all.spawn(ask());
      while (turned_away < strays - places) co_await yield();
      cable_->cut();
      all.spawn(let_time_pass());
      co_await send_one(both.client, 1);
      const auto message = co_await both.server.recv_or_throw();
      is_over = true;
      listener.reset();
    });
  };
  home.run(script());
  EXPECT_EQ(turned_away, strays - places);
}

TEST_F(resumption, a_peer_that_exposes_more_than_this_end_allows_is_told_so) {
  net::connection_options few = resuming();
  few.max_peer_exposures = 4;
  const auto script = [&](pair& both) -> task<> {
    std::vector<net::exposure> open;
    for (int i = 0; i < 4; ++i) open.push_back(co_await expose(both.server, 16));
    static_cast<void>(co_await open.back().revoke());
    open.back() = co_await expose(both.server, 16);
    co_await both.client.write(co_await filled(client_, 16, 1), open.back().remote());
    open.push_back(co_await expose(both.server, 16));
    const auto sending = [&]() -> task<> { co_await both.server.send(co_await filled(server_, 16, 1)); };
    const auto receiving = [&]() -> task<> {
      EXPECT_TRUE(failed_with(co_await failure_of(both.client.recv()), errc::protocol_error, "max_peer_exposures"));
    };
    co_await when_all(sending(), receiving());
  };
  between_ends(script, few);
}

// A peer whose program stands still, with a message on the way to it, and then no rail at all.
TEST_F(resumption, lets_the_executor_sleep_while_its_peer_is_silent_or_away) {
  executor home({.policy = poll_policy::sleep});
  const auto body = [&]() -> task<> {
    net::listener listener = co_await server_.listen(own_loopback() + ":0");
    pair both = co_await connect(listener, resuming(), resuming());
    const auto expect_sleep = [&]() -> task<> {
      const std::uint64_t before = home.statistics().turns;
      co_await sleep_for(500ms);
      EXPECT_LT(home.statistics().turns - before, 20u);
    };
    cable_->is_silent = true;
    co_await with_scope(on_failure::stop_siblings, [&](scope& all) -> task<> {
      auto word = co_await filled(server_, 16, 1);
      all.spawn(both.server.send(std::move(word)));
      co_await expect_sleep();
      both.client.abort();
      cable_->is_silent = false;
      cable_->cut();
      co_await expect_sleep();
      all.request_stop();
    });
    both.server.abort();
  };
  home.run(with_timeout(forever, body()));
}

// ---- who waits ----

TEST_F(resumption, is_agreed_on_by_both_ends_and_else_the_connection_is_a_plain_one) {
  for (const bool at_client : {false, true}) {
    SCOPED_TRACE(at_client);
    const auto script = [&](pair& both) -> task<> {
      EXPECT_FALSE(both.client.capabilities().resumes);
      EXPECT_FALSE(both.server.capabilities().resumes);
      EXPECT_TRUE(both.client.capabilities().invalidate);
      cable_->cut();
      EXPECT_TRUE(co_await failure_of(send_one(both.client, 1)));
      EXPECT_EQ(cable_->attempts, 1u);
    };
    cable_->attempts = 0;
    between_ends(script, at_client ? resuming() : net::connection_options(),
                 at_client ? net::connection_options() : resuming());
  }
}

TEST_F_TASK(resumption, of_a_device_by_name_changes_none_of_its_names) {
  for (const char* name : {"iwarp", "shm,iwarp", "shm", "auto"}) {
    SCOPED_TRACE(name);
    auto device = net::device::open(name);
    for (const auto within : {0ms, 1000ms}) {
      net::listener listener = co_await device.listen(own_loopback() + ":0");
      auto both = co_await when_all(device.connect(std::string(listener.address()), resuming(within)),
                                    accept_one(listener, resuming(within)));
      const bool over_tcp = std::string_view(name) == "iwarp";
      EXPECT_EQ(std::get<0>(both).fabric(), over_tcp ? "iwarp" : "shm");
      EXPECT_EQ(std::get<0>(both).capabilities().resumes, over_tcp && within != 0ms);
    }
    EXPECT_TRUE(std::string_view(name) == "auto" || device.name() == name) << device.name();
  }
}

TEST_F_TASK(resumption, shares_no_receives_and_says_so) {
  net::listener listener = co_await server_.listen(own_loopback() + ":0");
  auto receives = co_await client_.share_receives();
  net::connection_options how = resuming();
  how.receives = &receives;
  const auto refused = co_await failure_of(client_.connect(std::string(listener.address()), how));
  EXPECT_TRUE(failed_with(refused, errc::not_supported));
  how.resume_within = 0ms;
  const pair both = co_await connect(listener, how, {});
}

// ---- a peer that is another ----

TEST_F_RESUMING(resumption, a_peer_that_has_given_the_connection_up_is_not_waited_for) {
  const auto target = co_await expose(both.server, 100);
  both.server.abort();
  auto source = co_await filled(client_, 100, 1);
  EXPECT_TRUE(failed_with(co_await failure_of(both.client.write(source, target.remote())), errc::peer_restarted));
}

// As a process that was killed, and another at its address: now, or once a few attempts have found nobody.
TEST_F(resumption, a_peer_that_was_started_anew_is_another_one_however_late_it_listens) {
  for (const unsigned attempts : {0u, 3u}) {
    SCOPED_TRACE(attempts);
    const auto body = [&]() -> task<> {
      std::optional<net::device> first(open());
      std::optional<net::listener> listener(co_await first->listen(own_loopback() + ":0"));
      const std::string address(listener->address());
      std::optional<pair> both(co_await connect(*listener, resuming(), resuming()));
      auto memory = co_await first->pool().allocate(100);
      std::optional<net::exposure> target(co_await both->server.expose(std::move(memory), open_wide));
      const auto where = target->remote();
      auto source = co_await filled(client_, 100, 1);
      const auto dying = [&]() -> task<> {
        cable_->is_down = true;
        cable_->cut();
        both->server.abort();
        listener->close();
        target.reset();
        cable_->is_down = false;
        while (cable_->attempts < attempts) co_await yield();
        net::device second = open();
        net::listener anew = co_await second.listen(address);
        const auto going_on = [&]() -> task<net::connection> {
          EXPECT_TRUE(failed_with(co_await failure_of(both->client.write(source, where)), errc::peer_restarted));
          co_return co_await client_.connect(address, resuming());
        };
        const auto fresh = co_await when_all(going_on(), accept_one(anew, resuming()));
        EXPECT_TRUE(std::get<0>(fresh).capabilities().resumes);
      };
      cable_->attempts = 0;
      co_await dying();
      both.reset();
    };
    home_.run(with_timeout(forever, body()));
  }
}

TEST_F_TASK(resumption, another_program_at_the_peers_address_is_a_clear_error) {
  std::optional<net::listener> listener(co_await server_.listen(own_loopback() + ":0"));
  const std::string address(listener->address());
  pair both = co_await connect(*listener, resuming(), resuming());
  cable_->is_down = true;
  cable_->cut();
  both.server.abort();
  listener.reset();
  net::device other = open_plain();
  net::listener anew = co_await other.listen(address);
  cable_->is_down = false;
  const auto resume = [&]() -> task<> {
    std::optional<error> why;
    while (!why) why = co_await failure_of(send_one(both.client, 1));
    EXPECT_TRUE(failed_with(why, errc::protocol_error, "another program"));
  };
  co_await when_all(accept_one(anew, net::connection_options()), resume());
}

TEST_F_RESUMING(resumption, nobody_joins_with_an_id_that_was_guessed) {
  const auto stranger = net::iwarp::open_transport({.checksum = false});
  const std::string address(both.client.peer());
  for (unsigned char i = 0; i < 20; ++i) {
    net::rails::join asked{.epoch = i};
    asked.id.fill(std::byte{i});
    const auto words = asked.pack();
    net::set_up_options how;
    how.deadline = later(clock::steady().now(), forever);
    how.private_data = words;
    EXPECT_TRUE(failed_with(co_await failure_of(stranger->connect(address, how)), errc::peer_restarted));
  }
  co_await send_one(both.client, 1);
  const auto message = co_await both.server.recv_or_throw();
}

}  // namespace
}  // namespace weft::test
