// SPDX-License-Identifier: Apache-2.0
// Several executors, each on a thread of its own, with one device.
#include <future>

#include "kit/tell.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

class threads : public peers {};
WEFT_ON_EVERY_TRANSPORT(threads);

TEST_P(threads, messages_go_from_one_to_the_other) {
  on_two_threads(echo, [&](net::connection& peer) -> task<> {
    for (unsigned i = 0; i < 500; ++i) {
      co_await peer.send(co_await filled(pool(), 500, i));
      EXPECT_TRUE(holds((co_await peer.recv_or_throw()).bytes(), i));
    }
    co_await peer.close();
  });
}

TEST_P(threads, one_writes_what_the_other_reads_once_told_so) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  constexpr std::size_t bytes = 3'000'000;
  const auto serve = [&](net::connection& peer) -> task<> {
    const auto open = co_await expose_zeros(peer, bytes);
    co_await tell(peer, pool(), open.remote());
    for (unsigned i = 0; i < 5; ++i) {
      auto message = co_await peer.recv_or_throw();
      EXPECT_TRUE(holds(open.memory().bytes(), i)) << i;
      co_await peer.send(std::move(message.payload));
    }
    static_cast<void>(co_await peer.recv());
  };
  on_two_threads(serve, [&](net::connection& peer) -> task<> {
    const auto there = co_await hear_region(peer);
    for (unsigned i = 0; i < 5; ++i) {
      co_await peer.write(co_await filled(pool(), bytes, i), there);
      co_await peer.send(co_await filled(pool(), 1, i));
      static_cast<void>(co_await peer.recv_or_throw());
      auto copy = co_await pool().allocate(bytes);
      co_await peer.read(copy, there);
      EXPECT_TRUE(holds(copy.bytes(), i));
    }
  });
}

TEST_P(threads, a_buffer_may_be_filled_on_one_and_let_go_on_another) {
  std::vector<mr::buffer> buffers;
  run([&]() -> task<> {
    for (unsigned i = 0; i < 100; ++i) buffers.push_back(co_await filled(pool(), 1000, i));
  });
  std::thread([&] {
    executor there;
    const auto drop = [&]() -> task<> {
      buffers.clear();
      co_return;
    };
    there.run(drop());
  }).join();
}

TEST_P(threads, each_with_an_executor_of_its_own_share_a_device) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  const auto work = [&] {
    executor mine;
    const auto root = [&]() -> task<> {
      for (int round = 0; round < 5; ++round) {
        auto ends = co_await connect_pair();
        const auto open = co_await expose_zeros(ends.server, 50'000);
        for (unsigned i = 0; i < 20; ++i) {
          co_await ends.client.write(co_await filled(pool(), 50'000, i), open.remote());
          co_await ends.client.send(co_await filled(pool(), 10, i));
          const auto message = co_await ends.server.recv_or_throw();
          EXPECT_TRUE(holds(open.memory().bytes(), i) && holds(message.bytes(), i));
        }
      }
    };
    mine.run(with_timeout(forever, root()));
  };
  std::vector<other_thread> all;
  for (int i = 0; i < 4; ++i) all.emplace_back(work);
}

TEST_P(threads, requests_may_be_handed_from_the_listeners_executor_to_others) {
  constexpr unsigned workers = 2;
  constexpr unsigned peers_each = 5;
  // An executor that serves the requests it is handed, until it has served its share.
  struct worker {
    executor home;
    std::vector<net::connection_request> requests;
    event changed;
  };
  const auto serve = [](net::connection_request request) -> task<> {
    auto peer = co_await request.accept(options());
    co_await echo(peer);
  };
  std::array<worker, workers> all;
  std::vector<other_thread> running;
  for (worker& mine : all) {
    running.emplace_back([&](const std::stop_token& left_early) {
      const auto root = [&](scope& tasks) -> task<> {
        for (unsigned served = 0; served < peers_each;) {
          co_await mine.changed.wait();
          mine.changed.reset();
          for (auto& each : std::exchange(mine.requests, {})) {
            tasks.spawn(serve(std::move(each)));
            ++served;
          }
        }
      };
      const auto body = [&]() -> task<> { co_await with_scope(on_failure::stop_siblings, root); };
      mine.home.run(with_timeout(forever, body()), left_early);
    });
  }
  run([&]() -> task<> {
    auto listener = co_await device().listen(std::string(GetParam().any_address));
    const auto ask = [&](unsigned number) -> task<> {
      auto peer = co_await device().connect(std::string(listener.address()), options());
      co_await peer.send(co_await filled(pool(), 100, number));
      EXPECT_TRUE(holds((co_await peer.recv_or_throw()).bytes(), number));
      co_await peer.close();
    };
    const auto body = [&](scope& tasks) -> task<> {
      for (unsigned i = 0; i < workers * peers_each; ++i) {
        tasks.spawn(ask(i));
        auto request = co_await listener.next();
        worker& chosen = all[i % workers];
        chosen.home.post([&chosen, handed = *std::move(request)]() mutable {
          chosen.requests.push_back(std::move(handed));
          chosen.changed.set();
        });
      }
    };
    co_await with_scope(on_failure::stop_siblings, body);
  });
  for (other_thread& each : running) each.join();
}

TEST_P_TASK(threads, a_request_that_is_dropped_anywhere_rejects_its_peer) {
  auto listener = co_await device().listen(std::string(GetParam().any_address));
  for (const bool on_executor : {false, true}) {
    const auto drop = [&]() -> task<> {
      auto request = co_await listener.next();
      std::thread([&, dropped = std::move(request)]() mutable {
        if (!on_executor) return dropped.reset();
        executor there;
        const auto root = [&]() -> task<> {
          dropped.reset();
          co_return;
        };
        there.run(root());
      }).join();
    };
    const auto both = co_await when_all(code_of(device().connect(std::string(listener.address()), options())), drop());
    EXPECT_EQ(std::get<0>(both), errc::peer_rejected);
  }
}

TEST_P_TASK(threads, a_listeners_own_calls_from_another_are_refused_and_its_end_is_handed_over) {
  std::optional<net::listener> listener(co_await device().listen(std::string(GetParam().any_address)));
  const std::string address(listener->address());
  const auto misuse = [&]() -> task<> { EXPECT_EQ(co_await code_of(listener->next()), errc::wrong_thread); };
  co_await on_another_executor(misuse);
  const auto end = [&]() -> task<> {
    const auto drop = [&] { listener.reset(); };
    co_await elsewhere(drop);
  };
  const auto both = co_await when_all(listener->next(), end());
  EXPECT_FALSE(std::get<0>(both));
  EXPECT_EQ(co_await code_of(device().connect(address, options())), std::errc::connection_refused);
}

TEST_P_TASK(threads, a_connection_that_is_destroyed_on_another_is_closed_in_order_by_its_own) {
  for (const bool on_executor : {false, true}) {
    auto ends = co_await connect_pair();
    co_await ends.client.send(co_await filled(pool(), 5, 1));
    const auto drop = [&] {
      std::thread([&, dropped = std::move(ends.client)]() mutable {
        const auto destroy = [&]() -> task<> {
          const net::connection gone = std::move(dropped);
          co_return;
        };
        if (on_executor) executor().run(destroy());
      }).join();
    };
    co_await offload(drop);
    const auto message = co_await ends.server.recv_or_throw();
    EXPECT_TRUE(holds(message.bytes(), 1));
    EXPECT_FALSE(co_await ends.server.recv());
  }
}

TEST_P(threads, a_connection_that_is_destroyed_on_another_after_the_last_run_is_closed_with_its_executor) {
  std::vector<net::connection> kept;
  run([&]() -> task<> {
    auto ends = co_await connect_pair();
    co_await ends.client.send(co_await filled(pool(), 5, 1));
    kept.push_back(std::move(ends.client));
    kept.push_back(std::move(ends.server));
  });
  std::thread([&] { kept.clear(); }).join();
}

TEST_P(threads, an_executor_that_is_destroyed_before_a_connection_or_a_listener_ends_the_program_in_words) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto keep = [this](bool a_listener) {
    std::optional<net::listener> listener;
    std::vector<net::connection> kept;
    run([&]() -> task<> {
      listener.emplace(co_await device().listen(std::string(GetParam().any_address)));
      auto ends = co_await connect_pair();
      kept.push_back(std::move(ends.client));
      if (!a_listener) co_return;
      kept.clear();
    });
    if (!a_listener) listener.reset();
    open_executor({});
  };
  EXPECT_DEATH(keep(false), "weft: an executor was destroyed before a connection, listener");
  EXPECT_DEATH(keep(true), "weft: an executor was destroyed before a connection, listener");
}

TEST_P(threads, a_listener_that_was_closed_may_outlive_its_executor) {
  std::optional<net::listener> listener;
  auto own = std::make_unique<executor>();  // on the heap, where sanitizers notice a use of it when it is gone
  const auto listen = [&]() -> task<> {
    listener.emplace(co_await device().listen(std::string(GetParam().any_address)));
    listener->close();
  };
  own->run(listen());
  own.reset();
  listener.reset();
}

TEST_P_WINDOWS_TASK(threads, what_a_peer_may_use_is_taken_from_it_wherever_it_is_destroyed) {
  for (const bool is_window : {false, true}) {
    auto ends = co_await connect_pair();
    auto region = co_await register_zeros(100, {.usage = mr::usage::bind_window});
    auto open = co_await expose_zeros(ends.server, 100);
    auto bound = co_await ends.server.expose(region.slice(), mr::usage::write_dst | mr::usage::read_src);
    const mr::remote_region there = is_window ? bound.remote() : open.remote();
    co_await ends.client.flush(there);
    const auto drop = [&] {
      if (is_window) {
        bound = net::exposure();
      } else {
        open = net::exposure();
      }
    };
    co_await elsewhere(drop);
    if (is_window) {
      co_await region.release();  // not busy: nobody uses it any more
    } else {
      co_await until_lent_buffers_return(0);
    }
    EXPECT_EQ(co_await code_of(ends.client.flush(there)), errc::remote_access);
  }
}

TEST_P(threads, what_a_peer_may_use_can_be_destroyed_or_retired_anywhere_after_its_executor) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  for (const bool retires : {false, true}) {
    std::vector<net::exposure> kept;
    run([&]() -> task<> {
      auto ends = co_await connect_pair();
      kept.push_back(co_await expose_zeros(ends.server, 100, mr::usage::write_dst));
    });
    open_executor({});
    std::thread([&] { retires ? kept.front().retire() : kept.clear(); }).join();
    EXPECT_EQ(pool().statistics().send.in_use_bytes, 0u);
  }
}

TEST_P_WINDOWS_TASK(threads, what_a_peer_may_use_is_left_to_its_connection_wherever_it_is_retired) {
  auto ends = co_await connect_pair();
  auto source = co_await filled(pool(), 100, 1);
  auto open = co_await expose_zeros(ends.server, 100);
  auto confirmed = co_await expose_zeros(ends.server, 100, mr::usage::write_dst);
  ends.server.confirm_retired(confirmed.remote().key());  // outruns what the other thread does
  const auto retire = [&] {
    open.retire();
    confirmed.retire();
  };
  co_await elsewhere(retire);
  co_await write_and_flush(ends.client, source, open.remote());
  EXPECT_EQ(ends.server.statistics().retired_bytes, 100u);
  ends.server.confirm_retired(open.remote().key());
  EXPECT_EQ(ends.server.statistics().retired, 0u);
  source = mr::buffer();
  co_await until_lent_buffers_return(0);
}

TEST_P_WINDOWS(threads, a_connections_own_calls_from_another_are_refused) {
  auto payload = co_await filled(pool(), 1, 1);
  auto open = co_await expose_zeros(server, 1, mr::usage::read_src);
  const auto misuse = [&]() -> task<> {
    EXPECT_EQ(co_await code_of(client.send(payload)), errc::wrong_thread);
    EXPECT_EQ(co_await code_of(client.recv()), errc::wrong_thread);
    EXPECT_EQ(co_await code_of(client.close()), errc::wrong_thread);
    EXPECT_EQ(co_await code_of(client.expose(mr::buffer(), mr::usage::read_src)), errc::wrong_thread);
    EXPECT_EQ(co_await code_of(client.expose(mr::slice(), mr::usage::read_src)), errc::wrong_thread);
    EXPECT_EQ(co_await code_of(open.revoke()), errc::wrong_thread);
    EXPECT_THROW(server.confirm_retired(open.remote().key()), error);
    const mr::remote_slice word(1, 0, 8, mr::usage::atomic_dst);
    EXPECT_EQ(co_await code_of(client.fetch_add(word, 1)), errc::wrong_thread);
    std::array members{client.send(payload)};
    EXPECT_EQ(co_await code_of(client.batch(members)), errc::wrong_thread);
  };
  co_await on_another_executor(misuse);
  co_await client.send(payload);
  static_cast<void>(co_await server.recv_or_throw());
}

// A peer that is alive and does nothing: its executor's thread is busy elsewhere until it is told to go on.
class frozen : public threads {
 protected:
  template <class Ask>
  void with_frozen_peer(Ask ask, net::connection_options client = options()) {
    std::promise<void> thaw;
    const auto serve = [&](net::connection&) -> task<> {
      thaw.get_future().wait();  // blocks the executor's thread, which is the point
      co_return;
    };
    on_two_threads(
        serve,
        [&](net::connection& peer) -> task<> {
          try {
            co_await ask(peer);
          } catch (...) {
            thaw.set_value();
            throw;
          }
          thaw.set_value();
        },
        client);
  }
};
WEFT_ON_EVERY_TRANSPORT(frozen);

#define TEST_P_FROZEN(suite, name, ...) \
  TEST_P_SCRIPT(suite, name, (net::connection & peer), with_frozen_peer(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

TEST_P_FROZEN(frozen, peers_do_not_keep_a_close_waiting_beyond_its_timeout, options({.close_timeout = 20ms})) {
  co_await peer.close();
}

TEST_P_FROZEN(frozen, peers_do_not_keep_a_close_with_operations_in_flight_waiting_beyond_its_timeout,
              options({.close_timeout = 20ms})) {
  const auto body = [&](scope& tasks) -> task<> {
    auto payload = co_await filled(pool(), 100, 1);
    std::vector<std::unique_ptr<attempt>> sends;
    for (unsigned i = 0; i < 20; ++i) sends.push_back(std::make_unique<attempt>(tasks, peer.send(payload)));
    co_await settle();
    co_await peer.close();
    for (const auto& each : sends) co_await each->end();
    EXPECT_TRUE(sends.front()->succeeded());
    EXPECT_EQ(sends.back()->code(), errc::closed) << sends.back()->words();
  };
  co_await with_scope(on_failure::stop_siblings, body);
}

TEST_P_FROZEN(frozen, peers_do_not_keep_a_stopped_close_waiting) {
  EXPECT_EQ(co_await code_of(with_timeout(20ms, peer.close())), errc::timed_out);
}

TEST_P_FROZEN(frozen, peers_do_not_keep_an_abort_waiting) {
  peer.abort();
  EXPECT_EQ(co_await code_of(peer.recv()), errc::closed);
}

TEST_P_FROZEN(frozen, peers_stop_a_send_at_the_credit_limit_and_a_timeout_ends_that_wait) {
  auto payload = co_await filled(pool(), 10, 1);
  for (unsigned i = 0; i < options().receive_depth; ++i) co_await peer.send(payload);
  EXPECT_TRUE(refused_with(co_await failure_of(with_timeout(20ms, peer.send(payload))), errc::timed_out));
  peer.abort();
}

}  // namespace
}  // namespace weft::test
