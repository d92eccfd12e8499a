// SPDX-License-Identifier: Apache-2.0
// How a connection ends: in order, in death, and what is left to be had from it afterwards.
#include <deque>

#include "../sim/loose_task.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

class closing : public peers {};
WEFT_ON_EVERY_TRANSPORT(closing);

TEST_P_BETWEEN(closing, in_order_is_seen_as_the_end_of_messages) {
  attempt closing_it(tasks, client.close());
  EXPECT_FALSE(co_await server.recv());
  EXPECT_FALSE(co_await server.recv());
  EXPECT_EQ(co_await code_of(server.recv_or_throw()), errc::peer_closed);
  auto payload = co_await filled(pool(), 1, 1);
  EXPECT_EQ(co_await code_of(server.send(payload)), errc::peer_closed);
  EXPECT_TRUE(co_await succeeds(closing_it));
  co_await server.close();
  co_await server.close();  // once more is no harm
}

// What is spawned begins in a later turn, and another task may destroy the connection before.
TEST_P_BETWEEN(closing, tasks_that_were_made_and_had_not_begun_find_their_connection_gone) {
  auto memory = co_await filled(pool(), 64, 1);
  const mr::slice range = memory.slice();
  auto opening = client.expose(std::move(memory), mr::usage::read_src);
  auto binding = client.expose(range, mr::usage::read_src);
  auto once_more = client.close();
  attempt closing_it(tasks, client.close());
  co_await server.close();
  co_await closing_it.end();
  { const net::connection gone = std::move(client); }
  EXPECT_EQ(co_await code_of(std::move(opening)), errc::closed);
  EXPECT_EQ(co_await code_of(std::move(binding)), errc::closed);
  const auto closed = co_await code_of(std::move(once_more));
  EXPECT_EQ(closed, errc::closed);
}

TEST_P_BETWEEN(closing, is_told_to_who_waits_for_the_end_of_either_side) {
  std::vector<std::error_code> why;
  const auto wait = [&](net::connection& side) -> task<> {
    const error found = co_await side.ended();
    why.push_back(found.code());
  };
  attempt at_server(tasks, wait(server));
  attempt stopped(tasks, wait(server));
  attempt at_client(tasks, wait(client));
  co_await settle();
  EXPECT_EQ(co_await code_once_stopped(stopped), errc::canceled);
  EXPECT_TRUE(client.is_open() && server.is_open());
  co_await client.send_bytes("before");
  { const net::connection dropped = std::move(client); }
  EXPECT_FALSE(client.is_open());
  co_await at_client.end();
  co_await at_server.end();
  EXPECT_EQ(why, (std::vector<std::error_code>{errc::closed, errc::peer_closed}));
  EXPECT_FALSE(server.is_open());
  const auto message = co_await server.recv_or_throw();
  EXPECT_EQ(message.text(), "before");
}

TEST_P_BETWEEN(closing, a_connection_that_an_abort_has_ended_is_not_open) {
  const auto wait = [&]() -> task<> {
    const error found = co_await server.ended();
    throw error(found);
  };
  attempt at_server(tasks, wait());
  client.abort();
  EXPECT_EQ(co_await code_of(at_server), errc::peer_vanished) << at_server.words();
  EXPECT_NE(at_server.words().find(server.peer()), std::string::npos) << at_server.words();
  EXPECT_FALSE(server.is_open() || client.is_open());
}

// Nothing of the connection is there any more when the memory comes.
TEST_P(closing, is_outlived_by_tasks_that_wait_for_memory_to_send_bytes_and_by_those_that_are_destroyed) {
  open_device(tight);
  const auto waiting = [&] { return pool().statistics().send.waiting; };
  const auto script = [&]() -> task<> {
    connected ends = co_await connect_pair(options(), options());
    std::optional<mr::buffer> half(co_await pool().allocate(tight.arena_bytes));
    std::optional<mr::buffer> rest(co_await pool().allocate(tight.arena_bytes));
    {
      const auto send = [&]() -> sim::loose_task { co_await ends.client.send_bytes("destroyed"); };
      const auto listen = [&]() -> sim::loose_task { static_cast<void>(co_await ends.client.ended()); };
      const sim::loose_task sending = send();
      const sim::loose_task listening = listen();
      sending.start(home());
      listening.start(home());
      co_await settle();
      EXPECT_TRUE(sending.at_rest() && listening.at_rest());
      EXPECT_EQ(waiting(), 1u);
    }
    EXPECT_EQ(waiting(), 0u);
    const auto body = [&](scope& tasks) -> task<> {
      attempt sending(tasks, ends.client.send_bytes("too late"));
      while (waiting() == 0) co_await yield();
      { const net::connection dropped = std::move(ends.client); }
      EXPECT_FALSE(co_await ends.server.recv());
      co_await ends.server.close();
      { const net::connection dropped = std::move(ends.server); }
      while (device().statistics().connections_open() != 0) co_await yield();
      co_await settle();
      EXPECT_FALSE(sending.ended());
      rest.reset();
      EXPECT_EQ(co_await code_of(sending), errc::closed) << sending.words();
    };
    co_await with_scope(on_failure::stop_siblings, body);
  };
  run(script);
}

TEST_P_BETWEEN(closing, sends_what_was_posted_and_what_waits_for_credits, options(), options({.receive_depth = 2})) {
  unsigned sent = 0;
  std::vector<mr::buffer> payloads;
  for (unsigned i = 0; i < 20; ++i) payloads.push_back(co_await filled(pool(), 1000, i));
  const auto send_one = [&](unsigned number) -> task<> {
    co_await client.send(payloads[number]);
    ++sent;
  };
  for (unsigned i = 0; i < 20; ++i) tasks.spawn(send_one(i));
  co_await yield();
  attempt closing_it(tasks, client.close());
  for (unsigned i = 0; i < 20; ++i) {
    const auto message = co_await server.recv();
    EXPECT_TRUE(message && holds(message->bytes(), i)) << i;
  }
  EXPECT_FALSE(co_await server.recv());
  co_await closing_it.end();
  EXPECT_EQ(sent, 20u);
}

TEST_P(closing, goes_on_when_the_last_operation_that_waits_for_credits_is_stopped) {
  const auto shallow = options({.receive_depth = 1});
  const auto patient = options({.close_timeout = std::chrono::hours(1)});
  for (const bool by_batch : {false, true}) {
    between_busy_peers(
        [&](net::connection& client, net::connection& server, scope& tasks) -> task<> {
          auto first = co_await filled(pool(), 10, 1);
          auto second = co_await filled(pool(), 10, 2);
          co_await client.send(first);
          std::array members{client.send(second)};
          std::optional<attempt> waiting;
          by_batch ? waiting.emplace(tasks, client.batch(members)) : waiting.emplace(tasks, client.send(second));
          co_await settle();
          attempt closing_it(tasks, client.close());
          co_await settle();
          EXPECT_FALSE(waiting->ended());
          EXPECT_EQ(co_await code_once_stopped(*waiting), errc::canceled);
          EXPECT_TRUE(co_await succeeds(closing_it));
          const auto message = co_await server.recv();
          EXPECT_TRUE(message && holds(message->bytes(), 1));
          EXPECT_FALSE(co_await server.recv());
        },
        patient, shallow);
  }
}

TEST_P(closing, in_the_background_goes_on_when_the_task_of_the_last_operation_that_waits_for_credits_is_destroyed) {
  const auto shallow = options({.receive_depth = 1});
  const auto patient = options({.close_timeout = std::chrono::hours(1)});
  const auto script = [&]() -> task<> {
    connected ends = co_await connect_pair(patient, shallow);
    auto first = co_await filled(pool(), 10, 1);
    auto second = co_await filled(pool(), 10, 2);
    co_await ends.client.send(first);
    {
      const auto send = [&]() -> sim::loose_task { co_await ends.client.send(second); };
      const sim::loose_task waiting = send();
      waiting.start(home());
      co_await settle();
      EXPECT_TRUE(waiting.at_rest());
      { const net::connection dropped = std::move(ends.client); }
      co_await settle();
    }
    const auto message = co_await ends.server.recv();
    EXPECT_TRUE(message && holds(message->bytes(), 1));
    EXPECT_FALSE(co_await ends.server.recv());
  };
  run(script);
}

TEST_P_WINDOWS(closing, finishes_a_large_write_first) {
  constexpr std::size_t bytes = std::size_t{8} << 20;
  const auto there = co_await expose_zeros(server, bytes, mr::usage::write_dst);
  auto source = co_await filled(pool(), bytes, 1);
  attempt writing(tasks, client.write(source, there.remote()));
  co_await yield();
  attempt closing_it(tasks, client.close());
  EXPECT_FALSE(co_await server.recv());
  EXPECT_TRUE(holds(there.memory().bytes(), 1));
  co_await closing_it.end();
  EXPECT_TRUE(writing.succeeded() && closing_it.succeeded());
}

TEST_P(closing, on_both_sides_while_the_sends_of_both_wait_for_credits_needs_no_time_limit) {
  for (const auto depth : std::to_array<std::uint16_t>({1, 2, 5})) {
    const auto shallow = options({.receive_depth = depth, .close_timeout = std::chrono::hours(1)});
    between_busy_peers(
        [&](net::connection& client, net::connection& server, scope& tasks) -> task<> {
          std::deque<attempt> sends;
          for (unsigned i = 0; i < 2 * shallow.receive_depth; ++i) {
            auto one = co_await filled(pool(), 1, i);
            sends.emplace_back(tasks, client.send(std::move(one)));
            auto other = co_await filled(pool(), 1, i);
            sends.emplace_back(tasks, server.send(std::move(other)));
          }
          co_await settle();  // nobody receives
          attempt closing_a(tasks, client.close());
          attempt closing_b(tasks, server.close());
          EXPECT_TRUE(co_await succeeds(closing_a));
          EXPECT_TRUE(co_await succeeds(closing_b));
          for (attempt& send : sends) co_await send.end();
        },
        shallow, shallow);
  }
}

TEST_P_BETWEEN(closing, ends_waiting_receives_and_refuses_what_comes_after) {
  auto payload = co_await filled(pool(), 1, 1);
  attempt receiving(tasks, client.recv());
  co_await settle();
  attempt closing_it(tasks, client.close());
  EXPECT_EQ(co_await code_of(receiving), errc::closed);
  EXPECT_EQ(co_await code_of(client.send(payload)), errc::closed);
  EXPECT_EQ(co_await code_of(client.recv()), errc::closed);
  EXPECT_EQ(co_await code_of(client.expose(std::move(payload), mr::usage::read_src)), errc::closed);
  EXPECT_FALSE(co_await server.recv());
  co_await closing_it.end();
}

TEST_P_BETWEEN(closing, ends_the_peers_sends_that_wait_for_credits, options(), options({.receive_depth = 1})) {
  auto payload = co_await filled(pool(), 1, 1);
  co_await client.send(payload);
  attempt waiting(tasks, client.send(payload));
  co_await settle();
  attempt closing_it(tasks, server.close());
  EXPECT_EQ(co_await code_of(waiting), errc::peer_closed);
  EXPECT_FALSE(waiting.posted());
  co_await closing_it.end();
}

TEST_P(closing, of_a_connection_that_outlives_the_run_is_waited_for) {
  std::optional<connected> ends;
  const auto connect = [&]() -> task<> { ends.emplace(co_await connect_pair()); };
  run(connect);
  {
    // One end goes while no task runs, and the other is there only in the next run.
    auto server = std::move(ends->server);
    const auto wait_for_end = [&]() -> task<> {
      { const net::connection dropped = std::move(ends->client); }
      EXPECT_FALSE(co_await server.recv());
    };
    run(wait_for_end);
  }
  ends.reset();
}

TEST_P_BETWEEN(closing, a_dead_peer_is_not_taken_for_a_closed_one) {
  attempt receiving(tasks, server.recv());
  co_await settle();
  client.abort();
  EXPECT_EQ(co_await code_of(receiving), errc::peer_vanished) << receiving.words();
  EXPECT_EQ(co_await code_of(server.recv()), errc::peer_vanished);
  auto payload = co_await filled(pool(), 1, 1);
  EXPECT_TRUE(refused_with(co_await failure_of(server.send(payload)), errc::peer_vanished));
  co_await server.close();
}

TEST_P_WINDOWS(closing, messages_of_a_peer_that_died_afterwards_are_still_to_be_had) {
  for (unsigned i = 0; i < 3; ++i) co_await client.send(co_await filled(pool(), 10, i));
  const auto at_server = co_await expose_zeros(server, 1, mr::usage::read_src);
  co_await client.flush(at_server.remote());  // they are there
  client.abort();
  for (unsigned i = 0; i < 3; ++i) {
    const auto message = co_await server.recv();
    EXPECT_TRUE(message && holds(message->bytes(), i));
  }
  EXPECT_EQ(co_await code_of(server.recv()), errc::peer_vanished);
}

TEST_P_BETWEEN(closing, an_abort_ends_every_operation_of_this_end, options(), options({.receive_depth = 1})) {
  auto payload = co_await filled(pool(), 1, 1);
  co_await client.send(payload);
  attempt waiting(tasks, client.send(payload));
  attempt receiving(tasks, client.recv());
  co_await settle();
  client.abort();
  co_await waiting.end();
  co_await receiving.end();
  EXPECT_EQ(waiting.code(), errc::closed);
  EXPECT_EQ(receiving.code(), errc::closed);
  EXPECT_EQ(co_await code_of(client.send(payload)), errc::closed);
  client.abort();
  co_await client.close();
}

TEST_P_WINDOWS(closing, an_abort_lets_go_of_memory_that_was_on_its_way) {
  constexpr std::size_t bytes = std::size_t{8} << 20;
  const auto there = co_await expose_zeros(server, bytes, mr::usage::write_dst);
  auto source = co_await filled(pool(), bytes, 1);
  attempt writing(tasks, client.write(source, there.remote()));
  co_await yield();
  client.abort();
  EXPECT_EQ(co_await code_of(writing), errc::closed);
  EXPECT_TRUE(writing.posted());
  EXPECT_FALSE(source.in_use());
}

TEST_P_BETWEEN(closing, unwinding_aborts) {
  const auto fail = [&]() -> task<> {
    const net::connection mine = std::move(client);
    co_await yield();
    throw std::runtime_error("no");
  };
  try {
    co_await fail();
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(co_await code_of(server.recv()), errc::peer_vanished);
}

TEST_P_BETWEEN(closing, a_stop_that_unwinds_its_task_aborts) {
  const auto serve = [&](net::connection mine) -> task<> { co_await mine.recv(); };
  attempt serving(tasks, serve(std::move(client)));
  co_await settle();
  EXPECT_EQ(co_await code_once_stopped(serving), errc::canceled);
  EXPECT_EQ(co_await code_of(server.recv()), errc::peer_vanished);
}

// The connection is in the frame of a task that nobody awaits.
TEST_P_BETWEEN(closing, a_task_of_a_scope_that_fails_aborts) {
  const auto serve = [](net::connection mine) -> task<> {
    co_await mine.recv();
    throw std::runtime_error("no");
  };
  const report_list reports;
  const auto all = [&](scope& sessions) -> task<> {
    sessions.spawn(serve(std::move(client)));
    co_return;
  };
  attempt serving(tasks, with_scope(on_failure::report, all));
  // A provider may tell of the peer's end before it tells that the message has left.
  static_cast<void>(co_await code_of(server.send_bytes("a question")));
  EXPECT_EQ(co_await code_of(server.recv()), errc::peer_vanished);
  co_await serving.end();
}

TEST_P_BETWEEN(closing, a_failure_that_was_caught_leaves_an_orderly_close) {
  const auto fail = [&]() -> task<> {
    const net::connection mine = std::move(client);
    try {
      throw std::runtime_error("no");
    } catch (const std::runtime_error&) {
    }
    co_return;
  };
  co_await fail();
  EXPECT_FALSE(co_await server.recv());
}

// A message each way comes first: libfabric's tcp connects only then, and leaves a descriptor open where one end goes
// meanwhile.
TEST_P(closing, operations_that_were_posted_when_the_peer_died_say_so) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  bool has_died_before = false;
  const auto script = [&](net::connection& client, net::connection& server, scope& tasks) -> task<> {
    constexpr std::size_t bytes = std::size_t{8} << 20;
    co_await client.send_bytes("there");
    static_cast<void>(co_await server.recv_or_throw());
    co_await server.send_bytes("back");
    static_cast<void>(co_await client.recv_or_throw());
    const auto there = co_await server.expose(co_await filled(pool(), bytes, 1), mr::usage::read_src);
    auto sink = co_await pool().allocate(bytes);
    attempt reading(tasks, client.read(sink, there.remote()));
    co_await yield();
    server.abort();
    co_await reading.end();
    EXPECT_FALSE(sink.in_use());
    if (reading.succeeded() && !GetParam().answers_in_turns) co_return;  // a device may be faster
    has_died_before = true;
    EXPECT_EQ(reading.code(), errc::peer_vanished);
    EXPECT_TRUE(reading.posted());
    EXPECT_NE(reading.words().find(client.peer()), std::string::npos) << reading.words();
  };
  for (int tries = 0; tries != 10 && !has_died_before; ++tries) between_busy_peers(script);
}

TEST_P_TASK(closing, moving_a_connection_over_another_closes_that_one) {
  auto first = co_await connect_pair();
  auto second = co_await connect_pair();
  first.client = std::move(second.client);
  EXPECT_FALSE(co_await first.server.recv());
  auto payload = co_await filled(pool(), 1, 1);
  co_await first.client.send(payload);
  EXPECT_TRUE(co_await second.server.recv());
}

net::connection_options with_endless_times() {
  net::connection_options made;
  made.set_up_timeout = made.close_timeout = made.dead_peer_after = made.overdue_after =
      std::chrono::milliseconds::max();
  return made;
}

TEST_P_BETWEEN(closing, with_every_time_as_long_as_can_be_is_as_orderly, with_endless_times(), with_endless_times()) {
  co_await client.send(co_await filled(pool(), 5, 1));
  const auto serve = [&]() -> task<> {
    EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), 1));
    EXPECT_FALSE(co_await server.recv());
  };
  co_await when_all(client.close(), serve());
}

}  // namespace
}  // namespace weft::test
