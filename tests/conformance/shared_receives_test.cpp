// SPDX-License-Identifier: Apache-2.0
// Connections that draw receives from one queue.

#include "peers.hpp"

namespace weft::test {
namespace {

constexpr std::size_t one_mebibyte = std::size_t{1} << 20;

class shared_receives : public peers {
 protected:
  static net::connection_options on(net::shared_receives& queue) {
    const auto chosen = options({.receives = &queue});
    return chosen;
  }

  /// Runs `script(queue, tasks)`; without a queue where the transport has none.
  void with_queue(net::shared_receive_options how, const test_script<net::shared_receives&, scope&>& script) {
    bool possible = true;
    run([&]() -> task<> {
      auto queue = co_await share_receives(how);
      possible = queue.has_value();
      if (!possible) co_return;
      const auto body = [&](scope& tasks) -> task<> { co_await script(*queue, tasks); };
      co_await with_scope(on_failure::stop_siblings, body);
    });
    if (!possible) GTEST_SKIP() << "this transport has no shared receive queues";
  }

  task<> send_one(net::connection& from, std::size_t bytes, unsigned seed) {
    co_await from.send(co_await filled(pool(), bytes, seed));
  }

  /// Messages of one peer that have all come, and that nobody has received.
  task<> leave_unheard(connected& ends, unsigned count) {
    const auto open = co_await expose_zeros(ends.server, 8, mr::usage::read_src);
    for (unsigned i = 0; i < count; ++i) co_await send_one(ends.client, 100, i);
    co_await ends.client.flush(open.remote());
  }

  /// The server keeps messages until the pool has no memory for another one.
  task<> keep_what_the_pool_has(scope& tasks, connected& ends) {
    constexpr unsigned messages = 30;
    const auto ask = [&]() -> task<> {
      for (unsigned i = 0; i < messages; ++i) co_await send_one(ends.client, 1000, i);
    };
    attempt asking(tasks, ask());
    std::vector<net::message> kept;
    for (unsigned received = 0; received < messages; ++received) {
      attempt one(tasks, [](net::connection& at, std::vector<net::message>& into) -> task<> {
        into.push_back(co_await at.recv_or_throw());
      }(ends.server, kept));
      co_await settle();
      if (!one.ended()) kept.clear();
      co_await one.end();
      EXPECT_TRUE(one.succeeded() && holds(kept.back().bytes(), received)) << received;
    }
    co_await asking.end();
  }

  [[nodiscard]] std::size_t receive_bytes() { return pool().statistics().receive.in_use_bytes; }
};
WEFT_ON_EVERY_TRANSPORT(shared_receives);

#define TEST_P_QUEUE(suite, name, ...)                                                                        \
  TEST_P_SCRIPT(suite, name, ([[maybe_unused]] net::shared_receives & queue, [[maybe_unused]] scope & tasks), \
                with_queue(__VA_ARGS__, WEFT_SCRIPT))

TEST_P_QUEUE(shared_receives, are_not_for_connections_whose_ends_ask_each_other_for_what_owners_do, {}) {
  const auto refuse = [&](net::connection_options chosen, std::string_view words) -> task<> {
    chosen.receives = &queue;
    const auto failure = co_await failure_of(device().connect(GetParam().any_address, chosen));
    EXPECT_TRUE(failed_with(failure, errc::not_supported, words));
  };
  co_await refuse(options({.device_memory = true}), "memory of devices");
  co_await refuse(options({.persistent_flush = true}), "persistent_flush");
}

TEST_P_QUEUE(shared_receives, bring_each_message_to_its_connection_and_in_order, {.depth = 5}) {
  constexpr unsigned messages = 60;
  const auto ask = [&](connected& ends, unsigned number) -> task<> {
    for (unsigned i = 0; i < messages; ++i) co_await send_one(ends.client, 10 + number, number * 1000 + i);
  };
  const auto serve = [&](connected& ends, unsigned number) -> task<> {
    for (unsigned i = 0; i < messages; ++i) {
      const auto message = co_await ends.server.recv_or_throw();
      EXPECT_TRUE(message.size() == 10 + number && holds(message.bytes(), number * 1000 + i)) << number << " " << i;
    }
  };
  std::vector<connected> pairs;
  for (unsigned i = 0; i < 8; ++i) pairs.push_back(co_await connect_pair(on(queue), on(queue)));
  const auto exchange = [&](scope& inner) -> task<> {
    for (unsigned i = 0; i < pairs.size(); ++i) {
      inner.spawn(ask(pairs[i], i));
      inner.spawn(serve(pairs[i], i));
    }
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, exchange);
}

TEST_P_QUEUE(shared_receives, take_immediate_data_and_large_messages_like_others,
             {.receive_size = one_mebibyte, .depth = 3}) {
  auto ends = co_await connect_pair(options(), on(queue));
  EXPECT_EQ(ends.client.capabilities().max_send_bytes, one_mebibyte);
  const auto open = co_await expose_zeros(ends.server, 100, mr::usage::write_dst);
  for (unsigned i = 0; i < 6; ++i) {
    attempt sending(tasks, send_one(ends.client, one_mebibyte, i));
    const auto message = co_await ends.server.recv_or_throw();
    EXPECT_TRUE(message.size() == one_mebibyte && holds(message.bytes(), i));
    if (ends.client.capabilities().write_immediate) {
      auto source = co_await filled(pool(), 100, i);
      co_await ends.client.write(source, open.remote(), {.immediate = i});
      const auto note = co_await ends.server.recv_or_throw();
      EXPECT_TRUE(note.size() == 0 && note.immediate == i && holds(open.memory().bytes(), i));
    }
    co_await sending.end();
  }
  auto too_large = co_await filled(pool(), one_mebibyte + 1, 1);
  EXPECT_EQ(co_await code_of(ends.client.send(too_large)), errc::message_too_large);
}

TEST_P_QUEUE(shared_receives, bound_the_memory_whatever_the_number_of_connections, {.depth = 16}) {
  const std::size_t before = receive_bytes();
  EXPECT_GE(before, 16u * 4096);
  std::vector<connected> pairs;
  for (unsigned i = 0; i < 30; ++i) pairs.push_back(co_await connect_pair(on(queue), on(queue)));
  EXPECT_EQ(receive_bytes(), before);
  for (connected& ends : pairs) {
    co_await send_one(ends.client, 4096, 1);
    const auto message = co_await ends.server.recv_or_throw();
    EXPECT_TRUE(holds(message.bytes(), 1));
    EXPECT_LE(receive_bytes(), before + before / 16);  // the message's own
  }
}

TEST_P_QUEUE(shared_receives, that_are_all_taken_hold_up_every_connection_until_one_is_received, {.depth = 4}) {
  auto hoarder = co_await connect_pair(options(), on(queue));
  auto other = co_await connect_pair(options(), on(queue));
  co_await leave_unheard(hoarder, 4);
  attempt sending(tasks, send_one(other.client, 50, 7));
  attempt receiving(tasks, other.server.recv_or_throw());
  co_await settle();
  EXPECT_FALSE(receiving.ended());
  const auto first = co_await hoarder.server.recv_or_throw();
  EXPECT_TRUE(holds(first.bytes(), 0));
  EXPECT_TRUE(co_await succeeds(receiving));
  EXPECT_TRUE(co_await succeeds(sending));
  for (unsigned i = 1; i < 4; ++i) {
    const auto next = co_await hoarder.server.recv_or_throw();
    EXPECT_TRUE(holds(next.bytes(), i));
  }
}

TEST_P(shared_receives, come_back_from_a_connection_that_is_closed_or_aborted) {
  for (const bool aborts : {false, true}) {
    with_queue({.depth = 4}, [&](net::shared_receives& queue, scope& tasks) -> task<> {
      auto other = co_await connect_pair(options(), on(queue));
      for (unsigned round = 0; round < 3; ++round) {
        auto gone = co_await connect_pair(options(), on(queue));
        co_await leave_unheard(gone, 4);
        attempt sending(tasks, send_one(other.client, 50, round));
        co_await settle();
        if (aborts) gone.server.abort();
        co_await gone.server.close();
        const auto message = co_await other.server.recv_or_throw();
        EXPECT_TRUE(holds(message.bytes(), round));
        EXPECT_TRUE(co_await succeeds(sending));
      }
    });
  }
}

TEST_P_QUEUE(shared_receives, come_back_from_a_peer_that_goes_in_the_middle_of_a_message,
             {.receive_size = one_mebibyte, .depth = 2}) {
  auto other = co_await connect_pair(options(), on(queue));
  for (unsigned round = 0; round < 6; ++round) {
    auto gone = co_await connect_pair(options(), on(queue));
    attempt sending(tasks, send_one(gone.client, one_mebibyte, 1));
    for (unsigned i = 0; i <= round; ++i) co_await yield();
    gone.client.abort();
    co_await sending.end();
    attempt heard(tasks, gone.server.recv());  // the message, or the death
    co_await heard.end();
    attempt answering(tasks, send_one(other.client, one_mebibyte, round));
    const auto message = co_await other.server.recv_or_throw();
    EXPECT_TRUE(message.size() == one_mebibyte && holds(message.bytes(), round));
    co_await answering.end();
  }
  co_await leave_unheard(other, 2);  // all of them are there
}

TEST_P(shared_receives, whose_payloads_are_kept_come_back_when_the_pool_has_memory_again) {
  open_device(tight);
  with_queue({.receive_size = 200'000, .depth = 4}, [&](net::shared_receives& queue, scope& tasks) -> task<> {
    auto ends = co_await connect_pair(options(), on(queue));
    co_await keep_what_the_pool_has(tasks, ends);
  });
}

TEST_P(shared_receives, that_the_program_lets_go_of_while_it_accepts_come_back_as_well) {
  open_device(tight);
  with_queue({.receive_size = 200'000, .depth = 4}, [&](net::shared_receives& queue, scope& tasks) -> task<> {
    auto listener = co_await device().listen(GetParam().any_address);
    std::optional<net::connection> server;
    const auto accept = [&]() -> task<> { server = co_await listener.accept(on(queue)); };
    attempt accepting(tasks, accept());
    co_await settle();
    std::optional<net::shared_receives>(std::move(queue)).reset();
    auto client = co_await device().connect(std::string(listener.address()), options());
    co_await accepting.end();
    connected ends(std::move(client), *std::move(server));
    co_await keep_what_the_pool_has(tasks, ends);
  });
}

TEST_P_QUEUE(shared_receives, whose_memory_others_have_are_waited_for_no_longer_than_is_allowed, {.depth = 1}) {
  const std::size_t bytes = std::size_t{8} << 20;
  const std::size_t most = pool().max_buffers(bytes, mr::budget::receive);
  const auto held = co_await pool().allocate_all(most - 1, bytes, mr::budget::receive);
  const auto failure =
      co_await failure_of(device().share_receives({.receive_size = bytes - 12, .depth = 2, .set_up_timeout = 20ms}));
  EXPECT_TRUE(failed_with(failure, errc::timed_out, "wait for 2 receive buffers of 8388608 bytes"));
  EXPECT_EQ(pool().statistics().receive.waiting, 0U);
}

TEST_P_TASK(shared_receives, live_on_in_the_connections_that_use_them) {
  auto queue = co_await share_receives({.depth = 4});
  if (!queue) co_return;
  auto ends = co_await connect_pair(on(*queue), on(*queue));
  const auto drop = [&] { queue.reset(); };
  co_await elsewhere(drop);
  for (unsigned i = 0; i < 20; ++i) {
    co_await send_one(ends.client, 100, i);
    const auto message = co_await ends.server.recv_or_throw();
    EXPECT_TRUE(holds(message.bytes(), i));
  }
}

TEST_P_QUEUE(shared_receives, of_another_executor_or_device_or_none_are_refused, {.depth = 4}) {
  auto listener = co_await device().listen(GetParam().any_address);
  const std::string address(listener.address());
  const auto misuse = [&]() -> task<> {
    EXPECT_EQ(co_await code_of(device().connect(address, on(queue))), errc::wrong_thread);
  };
  co_await on_another_executor(misuse);
  auto stranger = open_device_of(GetParam());
  EXPECT_EQ(co_await code_of(stranger.connect(address, on(queue))), errc::wrong_device);
  for (const auto& [how, expected] :
       {std::pair{net::shared_receive_options{.depth = 0}, errc::invalid_argument},
        std::pair{net::shared_receive_options{.receive_size = 1u << 30, .depth = 9}, errc::no_memory}}) {
    EXPECT_EQ(co_await code_of(device().share_receives(how)), expected);
  }
  const auto moved = std::move(queue);
  EXPECT_EQ(co_await code_of(device().connect(address, on(queue))), errc::invalid_argument);
}

TEST_P_QUEUE(shared_receives, serve_peers_that_are_not_weft_as_well, {.depth = 3}) {
  auto plain = on(queue);
  plain.profile = net::profile::interop;
  std::vector<connected> pairs;
  for (unsigned i = 0; i < 3; ++i) pairs.push_back(co_await connect_pair(plain, plain));
  const auto ask = [&](connected& ends) -> task<> {
    for (unsigned i = 0; i < 20; ++i) co_await send_one(ends.client, 4096, i);
  };
  std::vector<std::unique_ptr<attempt>> asking;
  for (connected& ends : pairs) asking.push_back(std::make_unique<attempt>(tasks, ask(ends)));
  // Without credits each takes what there is: whoever waits for one has to receive on all.
  const auto serve = [&](connected& ends) -> task<> {
    for (unsigned i = 0; i < 20; ++i) {
      const auto message = co_await ends.server.recv_or_throw();
      EXPECT_TRUE(holds(message.bytes(), i)) << i;
    }
  };
  std::vector<std::unique_ptr<attempt>> serving;
  for (connected& ends : pairs) serving.push_back(std::make_unique<attempt>(tasks, serve(ends)));
  for (const auto& each : asking) co_await each->end();
  for (const auto& each : serving) {
    co_await each->end();
    EXPECT_TRUE(each->succeeded()) << each->words();
  }
  for (connected& ends : pairs) {  // over iWARP each ends its own direction
    co_await when_all(ends.client.close(), ends.server.close());
  }
}

TEST_P(shared_receives, cost_no_allocation_for_a_message) {
  if (sanitized) GTEST_SKIP() << "the sanitizers have an allocator of their own";
  with_queue({.depth = 4}, [&](net::shared_receives& queue, scope&) -> task<> {
    auto ends = co_await connect_pair(on(queue), on(queue));
    const auto round = [&]() -> task<> {
      co_await ends.client.send(co_await pool().allocate(64));
      static_cast<void>(co_await ends.server.recv_or_throw());
    };
    for (int i = 0; i < 200; ++i) co_await round();
    const std::size_t before = allocations();
    for (int i = 0; i < 1000; ++i) co_await round();
    EXPECT_EQ(allocations() - before, 0u);
  });
}

TEST_P(shared_receives, leave_nothing_behind_wherever_their_users_are_stopped) {
  const auto nothing = [](net::shared_receives&, scope&) -> task<> { co_return; };
  with_queue({.depth = 2}, nothing);  // what an executor keeps is there
  const std::size_t descriptors = open_descriptors();
  bool completed = false;
  // A device takes its time for a set-up, and the executor many turns meanwhile.
  const std::size_t step = GetParam().sets_up_quickly ? 1 : 41;
  for (std::size_t turns = 0; !completed && !HasFailure(); turns += step) {
    with_queue({.depth = 2}, [&](net::shared_receives& queue, scope&) -> task<> {
      const auto exchange = [&]() -> task<> {
        auto one = co_await connect_pair(on(queue), on(queue));
        auto other = co_await connect_pair(on(queue), on(queue));
        const auto send_all = [&]() -> task<> {
          for (connected* const ends : {&one, &other}) {
            for (unsigned i = 0; i < 2; ++i) co_await send_one(ends->client, 100, i);
          }
        };
        const auto receive_at = [](net::connection& server) -> task<> {
          for (unsigned i = 0; i < 2; ++i) {
            const auto message = co_await server.recv_or_throw();
            EXPECT_TRUE(holds(message.bytes(), i));
          }
        };
        // At both at once, because the messages of either may have taken all receives.
        co_await when_all(send_all(), receive_at(one.server), receive_at(other.server));
        co_await one.client.close();
        completed = true;
      };
      const auto body = [&](scope& inner) -> task<> {
        inner.spawn(exchange());
        for (std::size_t i = 0; i < turns && !completed; ++i) co_await yield();
        inner.request_stop();
      };
      static_cast<void>(co_await code_of(with_scope(on_failure::stop_siblings, body)));
    });
    expect_nothing_left();
    EXPECT_EQ(open_descriptors(), descriptors) << "stopped at turn " << turns;
    if (IsSkipped()) return;
  }
}

}  // namespace
}  // namespace weft::test
