// SPDX-License-Identifier: Apache-2.0
// A connection that waits for its links: connection_options::resume_within.
#include <weft/net/iwarp/transport.hpp>
#include <weft/net/rails/control.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/weft.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "ends.hpp"
#include "kit/failure.hpp"

namespace weft::test {
namespace {

using namespace std::chrono_literals;

net::connection_options resuming(std::chrono::milliseconds within = forever) {
  net::connection_options how;
  how.resume_within = within;
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
    auto accepting = accept_one(listener, at_server);
    auto connecting = client_.connect(std::string(listener.address()), at_client);
    auto both = co_await when_all(std::move(connecting), std::move(accepting));
    co_return pair{std::move(std::get<0>(both)), std::move(std::get<1>(both))};
  }
  // Runs the script on a connection whose ends wait so long.
  template <class Script>
  void between_ends(Script script, net::connection_options at_client = resuming(),
                    net::connection_options at_server = resuming()) {
    const auto body = [&]() -> task<> {
      net::listener listener = co_await server_.listen(own_loopback() + ":0");
      pair both = co_await connect(listener, at_client, at_server);
      co_await script(both);
    };
    home_.run(with_timeout(forever, body()));
  }
  static task<mr::buffer> filled(net::device& at, std::size_t bytes, unsigned char with) {
    return filled_with(at.pool(), bytes, std::byte{with});
  }
  task<net::exposure> expose(net::connection& at, std::size_t bytes) {
    auto memory = co_await filled(server_, bytes, 0);
    co_return co_await at.expose(std::move(memory), open_wide);
  }
  task<> send_one(net::connection& over, unsigned char with) {
    auto words = co_await filled(client_, 100, with);
    co_await over.send(std::move(words));
  }

  const std::shared_ptr<cable> cable_ = std::make_shared<cable>();
  net::device client_ = open();
  net::device server_ = open();
  executor home_;
};

// ---- it goes on ----

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
          auto source = co_await filled(client_, mebibyte, i);
          co_await both.client.write(std::move(source), target.remote());
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
    const auto sending = [&]() -> task<> { co_await send_one(both.client, 7); };
    const auto receiving = [&]() -> task<> {
      const auto message = co_await both.server.recv_or_throw();
      EXPECT_TRUE(is_all(message.bytes(), std::byte{7}));
    };
    co_await when_all(sending(), receiving());
    EXPECT_GE(cable_->made, 4u);
  });
}

TEST_F(resumption, goes_on_although_the_answer_to_an_attempt_was_lost) {
  between_ends([&](pair& both) -> task<> {
    const auto target = co_await expose(both.server, 100);
    for (unsigned char round = 1; round < 4; ++round) {
      cable_->lost_answers = round;
      cable_->cut();
      auto source = co_await filled(client_, 100, round);
      co_await both.client.write(std::move(source), target.remote());
      co_await send_one(both.client, round);
      const auto message = co_await both.server.recv_or_throw();
      EXPECT_TRUE(is_all(target.memory().bytes(), std::byte{round}));
      EXPECT_EQ(cable_->lost_answers, 0u);
    }
  });
}

TEST_F(resumption, operations_that_wait_for_a_link_are_stopped_as_usual) {
  between_ends([&](pair& both) -> task<> {
    const auto target = co_await expose(both.server, 100);
    cable_->is_down = true;
    cable_->cut();
    auto source = co_await filled(client_, 100, 1);
    auto writing = [&]() -> task<> { co_await both.client.write(source, target.remote()); };
    const auto why = co_await failure_of(with_timeout(20ms, writing()));
    EXPECT_TRUE(why && why->code() == errc::timed_out);
    cable_->is_down = false;
    auto again = co_await filled(client_, 100, 2);
    co_await both.client.write(std::move(again), target.remote());
    EXPECT_TRUE(is_all(target.memory().bytes(), std::byte{2}));
  });
}

// What was exposed while nothing got through, and taken back since, leaves places between those that are told of.
TEST_F(resumption, goes_on_with_memory_that_was_exposed_while_nothing_got_through) {
  between_ends([&](pair& both) -> task<> {
    cable_->is_silent = true;
    std::vector<net::exposure> open;
    for (int i = 0; i < 400; ++i) open.push_back(co_await expose(both.server, 16));
    for (int i = 0; i < 399; ++i) static_cast<void>(co_await open[static_cast<std::size_t>(i)].revoke());
    cable_->is_silent = false;
    cable_->cut();
    auto source = co_await filled(client_, 16, 1);
    co_await both.client.write(std::move(source), open.back().remote());
    EXPECT_TRUE(is_all(open.back().memory().bytes(), std::byte{1}));
  });
}

TEST_F(resumption, is_not_kept_out_by_requests_that_nobody_takes) {
  constexpr std::size_t places = 8;
  constexpr std::size_t strays = 30;
  const auto body = [&]() -> task<> {
    std::optional<net::listener> listener(co_await server_.listen(own_loopback() + ":0", {.max_half_open = places}));
    const std::string address(listener->address());
    pair both = co_await connect(*listener, resuming(), resuming());
    const auto stranger = net::iwarp::open_transport({.checksum = false});
    std::size_t turned_away = 0;
    const auto ask = [&]() -> task<> {
      net::set_up_options how;
      how.deadline = later(clock::steady().now(), forever);
      auto asking = [&]() -> task<> { const auto made = co_await stranger->connect(address, how); };
      if (co_await code_of(asking()) == std::errc::no_buffer_space) ++turned_away;
    };
    co_await with_scope(on_failure::stop_siblings, [&](scope& all) -> task<> {
      for (std::size_t i = 0; i < strays; ++i) all.spawn(ask());
      while (turned_away < strays - places) co_await yield();
      cable_->cut();
      co_await send_one(both.client, 1);
      const auto message = co_await both.server.recv_or_throw();
      listener.reset();
    });
    EXPECT_EQ(turned_away, strays - places);
  };
  home_.run(with_timeout(forever, body()));
}

TEST_F(resumption, a_peer_that_exposes_more_than_this_end_allows_is_told_so) {
  net::connection_options few = resuming();
  few.max_peer_exposures = 4;
  const auto script = [&](pair& both) -> task<> {
    std::vector<net::exposure> open;
    for (int i = 0; i < 4; ++i) open.push_back(co_await expose(both.server, 16));
    static_cast<void>(co_await open.back().revoke());
    open.back() = co_await expose(both.server, 16);
    auto source = co_await filled(client_, 16, 1);
    co_await both.client.write(std::move(source), open.back().remote());
    open.push_back(co_await expose(both.server, 16));
    const auto sending = [&]() -> task<> {
      auto note = co_await filled(server_, 16, 1);
      co_await both.server.send(std::move(note));
    };
    const auto receiving = [&]() -> task<> {
      auto one = [&]() -> task<> { static_cast<void>(co_await both.client.recv()); };
      const auto why = co_await failure_of(one());
      EXPECT_TRUE(why && why->code() == errc::protocol_error) << (why ? why->what() : "");
      EXPECT_NE(std::string(why ? why->what() : "").find("max_peer_exposures"), std::string::npos);
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
      auto sending = send_one(both.client, 1);
      const auto why = co_await failure_of(std::move(sending));
      EXPECT_TRUE(why.has_value());
      EXPECT_EQ(cable_->attempts, 1u);
    };
    cable_->attempts = 0;
    between_ends(script, at_client ? resuming() : net::connection_options(),
                 at_client ? net::connection_options() : resuming());
  }
}

TEST_F(resumption, of_a_device_by_name_changes_none_of_its_names) {
  const auto body = [&]() -> task<> {
    for (const char* name : {"iwarp", "shm,iwarp", "shm", "auto"}) {
      SCOPED_TRACE(name);
      auto device = net::device::open(name);
      for (const auto within : {0ms, 1000ms}) {
        net::listener listener = co_await device.listen(own_loopback() + ":0");
        auto accepting = accept_one(listener, resuming(within));
        auto connecting = device.connect(std::string(listener.address()), resuming(within));
        auto both = co_await when_all(std::move(connecting), std::move(accepting));
        const bool over_tcp = std::string_view(name) == "iwarp";
        EXPECT_EQ(std::get<0>(both).fabric(), over_tcp ? "iwarp" : "shm");
        EXPECT_EQ(std::get<0>(both).capabilities().resumes, over_tcp && within != 0ms);
      }
      EXPECT_TRUE(std::string_view(name) == "auto" || device.name() == name) << device.name();
    }
  };
  home_.run(with_timeout(forever, body()));
}

TEST_F(resumption, shares_no_receives_and_says_so) {
  const auto body = [&]() -> task<> {
    net::listener listener = co_await server_.listen(own_loopback() + ":0");
    auto receives = co_await client_.share_receives();
    net::connection_options how = resuming();
    how.receives = &receives;
    auto refused = [&]() -> task<> {
      const auto made = co_await client_.connect(std::string(listener.address()), how);
    };
    const auto why = co_await failure_of(refused());
    EXPECT_TRUE(why && why->code() == errc::not_supported) << (why ? why->what() : "");
    how.resume_within = 0ms;
    const pair both = co_await connect(listener, how, {});
  };
  home_.run(with_timeout(forever, body()));
}

// ---- a peer that is another ----

TEST_F(resumption, a_peer_that_has_given_the_connection_up_is_not_waited_for) {
  between_ends([&](pair& both) -> task<> {
    const auto target = co_await expose(both.server, 100);
    both.server.abort();
    auto source = co_await filled(client_, 100, 1);
    auto writing = [&]() -> task<> { co_await both.client.write(source, target.remote()); };
    const auto why = co_await failure_of(writing());
    EXPECT_TRUE(why && why->code() == errc::peer_restarted) << (why ? why->what() : "");
  });
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
      const auto writing = [&]() -> task<> { co_await both->client.write(source, where); };
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
          auto write = writing();
          const auto why = co_await failure_of(std::move(write));
          EXPECT_TRUE(why && why->code() == errc::peer_restarted) << (why ? why->what() : "");
          co_return co_await client_.connect(address, resuming());
        };
        auto a = going_on();
        auto b = accept_one(anew, resuming());
        const auto fresh = co_await when_all(std::move(a), std::move(b));
        EXPECT_TRUE(std::get<0>(fresh).capabilities().resumes);
      };
      cable_->attempts = 0;
      co_await dying();
      both.reset();
    };
    home_.run(with_timeout(forever, body()));
  }
}

TEST_F(resumption, another_program_at_the_peers_address_is_a_clear_error) {
  const auto body = [&]() -> task<> {
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
    const auto serving = [&]() -> task<> { const auto peer = co_await accept_one(anew, net::connection_options()); };
    const auto resume = [&]() -> task<> {
      auto sending = send_one(both.client, 1);
      auto why = co_await failure_of(std::move(sending));
      while (!why) {
        auto more = send_one(both.client, 1);
        why = co_await failure_of(std::move(more));
      }
      EXPECT_EQ(why->code(), errc::protocol_error) << why->what();
      EXPECT_NE(std::string(why->what()).find("another program"), std::string::npos) << why->what();
    };
    co_await when_all(serving(), resume());
  };
  home_.run(with_timeout(forever, body()));
}

TEST_F(resumption, nobody_joins_with_an_id_that_was_guessed) {
  between_ends([&](pair& both) -> task<> {
    const auto stranger = net::iwarp::open_transport({.checksum = false});
    const std::string address(both.client.peer());
    for (unsigned char i = 0; i < 20; ++i) {
      net::rails::join asked;
      asked.epoch = i;
      asked.id.fill(std::byte{i});
      const auto words = asked.pack();
      net::set_up_options how;
      how.deadline = later(clock::steady().now(), forever);
      how.private_data = words;
      auto joining = [&]() -> task<> { const auto made = co_await stranger->connect(address, how); };
      const auto why = co_await failure_of(joining());
      EXPECT_TRUE(why && why->code() == errc::peer_restarted) << (why ? why->what() : "");
    }
    co_await send_one(both.client, 1);
    const auto message = co_await both.server.recv_or_throw();
  });
}

}  // namespace
}  // namespace weft::test
