// SPDX-License-Identifier: Apache-2.0
// Stopping operations: at once, without losing a message, and never with memory that the transport still uses.
#include <weft/runtime/core/stop_shield.hpp>

#include "kit/tell.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

class cancellation : public peers {};
WEFT_ON_EVERY_TRANSPORT(cancellation);

TEST_P_BETWEEN(cancellation, a_stopped_recv_leaves_the_message_to_the_next_one) {
  for (unsigned i = 0; i < 50; ++i) {
    attempt receiving(tasks, server.recv());
    co_await yield();
    auto payload = co_await filled(pool(), 10, i);
    attempt sending(tasks, client.send(std::move(payload)));
    for (unsigned turns = 0; turns < i % 7; ++turns) co_await yield();
    if (!receiving.ended()) receiving.stop();
    co_await receiving.end();
    EXPECT_TRUE(co_await succeeds(sending));
    if (receiving.succeeded()) continue;  // the message was first
    EXPECT_EQ(receiving.code(), errc::canceled);
    EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), i)) << i;
  }
}

TEST_P_BETWEEN(cancellation, a_stopped_recv_in_the_middle_of_others_leaves_their_order) {
  std::vector<unsigned> got;
  const auto receive = [&](unsigned number) -> task<> {
    static_cast<void>(co_await server.recv_or_throw());
    got.push_back(number);
  };
  attempt a(tasks, receive(1));
  attempt b(tasks, receive(2));
  attempt c(tasks, receive(3));
  co_await settle();
  b.stop();
  co_await b.end();
  for (int i = 0; i < 2; ++i) co_await client.send(co_await filled(pool(), 1, 1));
  co_await c.end();
  EXPECT_EQ(got, (std::vector<unsigned>{1, 3}));
}

TEST_P_BETWEEN(cancellation, a_stopped_send_that_waited_for_credits_has_sent_nothing, options(),
               options({.receive_depth = 1})) {
  co_await client.send(co_await filled(pool(), 1, 1));
  auto second = co_await filled(pool(), 2, 2);
  auto third = co_await filled(pool(), 3, 3);
  attempt waiting(tasks, client.send(second));
  attempt behind(tasks, client.send(third));
  co_await settle();
  EXPECT_TRUE(second.in_use());
  EXPECT_EQ(co_await code_once_stopped(waiting), errc::canceled);
  EXPECT_FALSE(waiting.posted());
  EXPECT_FALSE(second.in_use());

  EXPECT_EQ((co_await server.recv_or_throw()).size(), 1u);
  EXPECT_EQ((co_await server.recv_or_throw()).size(), 3u);
  EXPECT_TRUE(co_await succeeds(behind));
}

TEST_P_BETWEEN(cancellation, a_stop_before_the_operation_begins_posts_nothing) {
  auto payload = co_await filled(pool(), 8, 1);
  std::array members{client.send(payload), client.send(payload)};
  const auto stopped_before = [&]() -> task<> {
    detail::promise_base& self = co_await detail::current_promise();
    stop_source stopped;
    stopped.request_stop();
    const detail::stop_shield shield(self);
    self.set_stop_token(stopped.get_token());
    auto failure = co_await failure_of(client.send(payload));
    EXPECT_TRUE(failure && failure->code() == errc::canceled && !failure->posted());
    failure = co_await failure_of(server.recv());
    EXPECT_TRUE(failed_with(failure, errc::canceled));
    EXPECT_TRUE(refused_with(co_await failure_of(client.batch(members)), errc::canceled));
  };
  attempt trying(tasks, stopped_before());
  EXPECT_TRUE(co_await succeeds(trying));
  co_await client.batch(members);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), 1));
}

TEST_P_WINDOWS(cancellation, a_stopped_write_of_pool_memory_returns_at_once_and_keeps_the_memory_until_it_is_done) {
  const auto there = co_await expose_zeros(server, long_transfer);
  auto source = co_await filled(pool(), long_transfer, 1);
  attempt writing(tasks, client.write(source, there.remote()));
  co_await yield();
  EXPECT_EQ(co_await code_once_stopped(writing), errc::canceled);
  EXPECT_TRUE(writing.posted());
  EXPECT_TRUE(source.in_use());
  EXPECT_EQ(co_await code_of(client.read(source, there.remote())), errc::buffer_in_use);
  co_await client.flush(there.remote());
  EXPECT_FALSE(source.in_use());
  EXPECT_TRUE(holds(there.memory().bytes(), 1));  // it took effect all the same
}

TEST_P_WINDOWS_TASK(cancellation,
                    a_stopped_read_into_pool_memory_returns_at_once_and_keeps_the_memory_until_it_is_done) {
  for (const bool is_prepared : {false, true}) {
    auto ends = co_await connect_pair();  // whose network is not warm, so that the read is under way
    const auto there = co_await ends.server.expose(co_await filled(pool(), long_transfer, 2), mr::usage::read_src);
    auto prepared = ends.client.prepare(there.remote());
    auto sink = co_await zeroed(pool(), long_transfer);
    std::optional<attempt> reading;
    is_prepared ? reading.emplace(tasks, prepared.read(sink))
                : reading.emplace(tasks, ends.client.read(sink, there.remote()));
    co_await yield();
    EXPECT_EQ(co_await code_once_stopped(*reading), errc::canceled) << is_prepared;
    EXPECT_TRUE(reading->posted() && sink.in_use()) << is_prepared;
    co_await ends.client.flush(there.remote());
    EXPECT_FALSE(sink.in_use()) << is_prepared;
    EXPECT_TRUE(holds(sink.bytes(), 2)) << is_prepared;
  }
}

TEST_P_BETWEEN(cancellation, a_stopped_send_of_pool_memory_may_still_arrive, options(),
               options({.receive_size = long_transfer, .receive_depth = 1})) {
  auto payload = co_await filled(pool(), long_transfer, 3);
  attempt sending(tasks, client.send(payload));
  co_await yield();
  EXPECT_EQ(co_await code_once_stopped(sending), errc::canceled);
  EXPECT_TRUE(sending.posted());
  EXPECT_TRUE(payload.in_use());
  const auto message = co_await server.recv_or_throw();
  EXPECT_TRUE(message.size() == long_transfer && holds(message.bytes(), 3));
}

TEST_P_WINDOWS_TASK(cancellation, a_buffer_destroyed_in_flight_returns_to_the_pool_only_after_the_completion) {
  for (const bool is_given : {false, true}) {
    auto ends = co_await connect_pair();  // whose network is not warm, so that the write is under way
    const auto there = co_await expose_zeros(ends.server, long_transfer);
    const std::size_t before = pool().statistics().send.in_use_bytes;
    {
      auto source = co_await filled(pool(), long_transfer, 4);
      auto write =
          is_given ? ends.client.write(std::move(source), there.remote()) : ends.client.write(source, there.remote());
      attempt writing(tasks, std::move(write));
      co_await yield();
      writing.stop();
      co_await writing.end();
    }
    EXPECT_GE(pool().statistics().send.in_use_bytes, before + long_transfer) << is_given;
    co_await ends.client.flush(there.remote());
    EXPECT_EQ(pool().statistics().send.in_use_bytes, before) << is_given;
    EXPECT_TRUE(holds(there.memory().bytes(), 4)) << is_given;
  }
}

TEST_P_WINDOWS(cancellation, stopping_a_write_of_borrowed_memory_ends_the_connection_and_only_then_returns) {
  auto region = co_await register_zeros(long_transfer, {.usage = mr::usage::write_src});
  const auto there = co_await expose_zeros(server, long_transfer);
  attempt writing(tasks, client.write(region.slice(), there.remote()));
  co_await yield();
  const auto busy = co_await code_of(region.release());
  EXPECT_EQ(busy, errc::busy);
  EXPECT_EQ(co_await code_once_stopped(writing), errc::canceled);
  EXPECT_TRUE(writing.posted());
  co_await region.release();  // not busy: nobody uses it any more
  EXPECT_EQ(co_await code_of(client.recv()), errc::closed);
  EXPECT_EQ(co_await code_of(server.recv()), errc::peer_vanished);
}

TEST_P_WINDOWS(cancellation, an_operation_that_is_stopped_says_so_though_another_task_has_awaited_it_as_well) {
  auto region = co_await register_zeros(long_transfer, {.usage = mr::usage::write_src});
  const auto there = co_await expose_zeros(server, long_transfer);
  auto operation = client.write(region.slice(), there.remote());
  const auto await_it = [&]() -> task<> {
    net::transfer& it = operation;
    co_await it;
  };
  attempt writing(tasks, await_it());
  co_await yield();
  writing.stop();
  const auto another = co_await code_of(await_it());
  EXPECT_TRUE(another == errc::busy || another == errc::invalid_argument) << another;  // it may have ended by then
  EXPECT_EQ(co_await code_of(writing), errc::canceled);
  co_await region.release();
}

TEST_P(cancellation, stopping_an_operation_on_a_scatter_list_holds_every_part_until_the_transport_lets_go) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  for (const bool reads : {false, true}) {
    between_busy_peers([&](net::connection& client, net::connection& server, scope& tasks) -> task<> {
      auto one = co_await register_zeros(long_transfer / 2, {.usage = mr::usage::write_src | mr::usage::read_dst});
      auto other = co_await register_zeros(long_transfer / 2, {.usage = mr::usage::write_src | mr::usage::read_dst});
      const std::array<mr::slice, 2> parts = {one.slice(), other.slice()};
      const auto there = co_await expose_zeros(server, long_transfer);
      auto operation = reads ? client.read(std::span<const mr::slice>(parts), there.remote())
                             : client.write(std::span<const mr::slice>(parts), there.remote());
      attempt moving(tasks, std::move(operation));
      co_await yield();
      for (mr::region* each : {&one, &other}) {
        const auto busy = co_await code_of(each->release());
        EXPECT_EQ(busy, errc::busy);
      }
      moving.stop();
      co_await moving.end();
      EXPECT_TRUE(moving.code() == errc::canceled && moving.posted());
      co_await one.release();
      co_await other.release();
    });
  }
}

TEST_P_WINDOWS(cancellation, stopping_a_read_into_borrowed_memory_ends_the_connection_and_only_then_returns) {
  auto region = co_await register_zeros(long_transfer, {.usage = mr::usage::read_dst});
  const auto there = co_await expose_zeros(server, long_transfer);
  attempt reading(tasks, client.read(region.slice(), there.remote()));
  co_await yield();
  EXPECT_EQ(co_await code_once_stopped(reading), errc::canceled);
  co_await region.release();
  EXPECT_EQ(co_await code_of(server.recv()), errc::peer_vanished);
}

constexpr const char* no_everything = "this device takes memory that is registered";

// In both, the memory goes with the frame, where the sanitizer sees who still writes.
TEST_P_WHERE(cancellation, stopping_a_read_by_everything_leaves_the_memory_to_its_frame_once_it_returns,
             has_windows() && device().domain().capabilities().everything, no_everything) {
  auto all = co_await device().domain().register_memory(mr::everything(), {.usage = mr::usage::read_dst});
  const auto there = co_await expose_zeros(server, long_transfer);
  const auto read_into_frame = [&]() -> task<> {
    std::vector<std::byte> place(long_transfer);
    co_await client.read(all.slice(place), there.remote());
  };
  attempt reading(tasks, read_into_frame());
  co_await yield();
  const auto busy = co_await code_of(all.release());
  EXPECT_EQ(busy, errc::busy);
  EXPECT_EQ(co_await code_once_stopped(reading), errc::canceled);
  co_await all.release();
  EXPECT_EQ(co_await code_of(server.recv()), errc::peer_vanished);
}

TEST_P_WHERE(cancellation, stopping_a_recv_by_everything_leaves_the_memory_to_its_frame_and_the_message_to_the_next_one,
             device().domain().capabilities().everything, no_everything) {
  auto all = co_await device().domain().register_memory(mr::everything(), {.usage = mr::usage::recv});
  const auto receive_into_frame = [&]() -> task<> {
    std::vector<std::byte> place(1000);
    static_cast<void>(co_await server.recv_into(all.slice(place)));
  };
  attempt receiving(tasks, receive_into_frame());
  co_await settle();
  EXPECT_EQ(co_await code_once_stopped(receiving), errc::canceled);
  co_await all.release();
  co_await client.send(co_await filled(pool(), 1000, 1));
  EXPECT_TRUE(holds((co_await server.recv_or_throw()).bytes(), 1));
}

TEST_P_BETWEEN(cancellation, stopping_a_send_of_borrowed_memory_that_still_waits_leaves_the_connection_alone, options(),
               options({.receive_depth = 1})) {
  auto payload = co_await filled(pool(), 5, 1);
  co_await client.send(payload);
  attempt waiting(tasks, client.send(payload.slice()));
  co_await settle();
  EXPECT_EQ(co_await code_once_stopped(waiting), errc::canceled);
  EXPECT_FALSE(waiting.posted());
  static_cast<void>(co_await server.recv_or_throw());
  co_await client.send(payload);
  static_cast<void>(co_await server.recv_or_throw());
}

TEST_P_BETWEEN(cancellation, a_region_of_sends_that_wait_for_the_peer_is_busy_until_they_have_ended, options(),
               options({.receive_depth = 1})) {
  auto region = co_await register_zeros(64, {.usage = mr::usage::send});
  co_await client.send(co_await filled(pool(), 5, 1));
  const std::array<mr::slice, 2> parts{region.slice(0, 5), region.slice(40, 24)};
  attempt whole(tasks, client.send(region.slice()));
  attempt in_parts(tasks, client.send(parts));
  co_await settle();
  EXPECT_EQ(co_await code_of(region.release()), errc::busy);
  EXPECT_EQ(co_await code_once_stopped(whole), errc::canceled);
  EXPECT_EQ(co_await code_of(region.release()), errc::busy);
  static_cast<void>(co_await server.recv_or_throw());
  EXPECT_EQ((co_await server.recv_or_throw()).size(), 29u);
  EXPECT_TRUE(co_await succeeds(in_parts));
  co_await region.release();
}

TEST_P_BETWEEN(cancellation, an_operation_that_runs_out_of_time_says_so) {
  EXPECT_EQ(co_await code_of(with_timeout(1ms, server.recv())), errc::timed_out);
  co_await expect_delivery(client, server);
}

TEST_P_BETWEEN(cancellation, the_stop_of_a_scope_ends_everything_in_it) {
  const auto receive_for_ever = [](net::connection& at) -> task<> {
    while (co_await at.recv()) {
    }
  };
  const auto send_for_ever = [&](net::connection& from) -> task<> {
    for (;;) co_await from.send(co_await filled(pool(), 100, 1));
  };
  const auto body = [&](scope& both_ways) -> task<> {
    both_ways.spawn(receive_for_ever(server));
    both_ways.spawn(send_for_ever(client));
    both_ways.spawn(send_for_ever(server));  // until there are no more credits
    co_await settle();
    both_ways.request_stop();
  };
  co_await with_scope(on_failure::stop_siblings, body);
}

// A whole exchange, from the set-up to the close, that can be stopped anywhere.
class exchange {
 public:
  exchange(net::device& device, std::string address, net::connection_options options)
      : device_(device), address_(std::move(address)), options_(options) {}

  task<> run() {
    net::listener listener = co_await device_.listen(address_);
    co_await when_all(serve(listener), ask(std::string(listener.address())));
    completed = true;
  }

  bool completed = false;

 private:
  task<> serve(net::listener& listener) {
    net::connection peer = co_await accept_one(listener, options_);
    auto memory = co_await zeroed(device_.pool(), 100'000);
    auto open =
        co_await peer.expose(std::move(memory), mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst);
    co_await tell(peer, device_.pool(), open.remote());
    while (auto message = co_await peer.recv()) {
      if (message->invalidated_key) continue;
      co_await peer.send(std::move(message->payload), {.immediate = message->immediate});
    }
    auto back = co_await open.revoke();
    EXPECT_TRUE(holds(back.bytes(), 1));
    co_await peer.close();
  }

  task<> ask(std::string address) {
    net::connection peer = co_await device_.connect(std::move(address), options_);
    const auto there = co_await hear_region(peer);
    auto source = co_await filled(device_.pool(), 100'000, 1);
    co_await peer.write(source, there);
    std::array checked{peer.flush(there), peer.read(source, there)};
    co_await peer.batch(checked);
    if (peer.capabilities().write_immediate) {
      co_await peer.write(source, there, {.immediate = 77});
      const auto answer = co_await peer.recv_or_throw();
      EXPECT_TRUE(answer.size() == 0 && answer.immediate == 77);
    }
    co_await change_and_restore(peer, there.slice(8, 8));
    for (unsigned i = 0; i < 4; ++i) {
      co_await peer.send(co_await filled(device_.pool(), 100, i), {.immediate = i});
      const auto answer = co_await peer.recv_or_throw();
      EXPECT_TRUE(holds(answer.bytes(), i) && answer.immediate == i);
    }
    auto last = co_await filled(device_.pool(), 1, 1);
    co_await peer.send(last, {.invalidate = there.key()});
    co_await peer.close();
  }

  static task<> change_and_restore(net::connection& peer, mr::remote_slice word) {
    if (!peer.capabilities().atomics) co_return;
    const std::uint64_t before = co_await peer.fetch_add(word, 1);
    EXPECT_EQ(co_await peer.compare_swap(word, before + 1, before), before + 1);
  }

  net::device& device_;
  std::string address_;
  net::connection_options options_;
};

TEST_P(cancellation, an_exchange_stopped_at_any_turn_leaves_nothing_behind) {
  if (!has_windows()) GTEST_SKIP() << no_windows;
  between_peers([](net::connection&, net::connection&) -> task<> { co_return; });  // what an executor keeps is there
  const std::size_t descriptors = open_descriptors();
  std::size_t turns = 0;
  for (bool completed = false; !completed; ++turns) {
    exchange one(device(), GetParam().any_address, options());
    const auto body = [&](scope& tasks) -> task<> {
      tasks.spawn(one.run());
      for (std::size_t i = 0; i < turns && !one.completed; ++i) co_await yield();
      tasks.request_stop();
    };
    const auto root = [&]() -> task<> { co_await with_scope(on_failure::stop_siblings, body); };
    run(root);
    completed = one.completed;
    expect_nothing_left();
    EXPECT_EQ(open_descriptors(), descriptors) << "stopped at turn " << turns;
    if (HasFailure()) return;
  }
  EXPECT_GT(turns, 10u);
}

}  // namespace
}  // namespace weft::test
