// SPDX-License-Identifier: Apache-2.0
// Whatever is destroyed first: nothing is touched after its release, nothing is left, and every waiter goes on, once.
#include <weft/net/software/domain.hpp>
#include <weft/runtime/core/stop_shield.hpp>

#include "../sim/loose_task.hpp"
#include "peers.hpp"

namespace weft::test {
namespace {

constexpr std::size_t some = 100'000;  // takes more than one turn on its way
constexpr std::size_t large = std::size_t{8} << 20;
constexpr mr::usage everything = mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst;

/// What users hold, each of which they may let go at any time.
struct holdings {
  std::optional<net::connection> client;
  std::optional<net::connection> server;
  std::optional<net::listener> listener;
  std::optional<net::shared_receives> queue;
  std::optional<net::exposure> open;
  std::optional<net::prepared_memory> prepared;  // outlives its operations
  std::optional<net::exposure> bound;
  std::optional<mr::region> region;
  std::optional<mr::buffer> source;
  std::optional<mr::buffer> sink;
  std::optional<mr::buffer> message;  // receives one
  scope* tasks = nullptr;             // let go: asked to stop
};
using release = void (*)(holdings&);

template <auto Member>
void drop(holdings& all) {
  (all.*Member).reset();
}
void drop_sinks(holdings& all) {
  all.sink.reset();
  all.message.reset();
}
void stop(holdings& all) { all.tasks->request_stop(); }

class destruction : public peers {
 protected:
  void SetUp() override {
    descriptors_ = open_descriptors();
    keys_ = keys();
  }

  static net::connection_options hasty() {
    const auto chosen = options({.close_timeout = 1ms});
    return chosen;
  }

  /// After that the executor has opened what it keeps for a device.
  void connect_once() {
    between_peers([](net::connection&, net::connection&) -> task<> { co_return; });
  }

  /// Runs `trial(order, number)` for each order in which `steps` can be done; where that takes long, or has been done
  /// on the same transport with other options, for some of them.
  template <std::size_t Count, class Trial>
  void in_every_order(std::array<release, Count> steps, Trial trial) {
    std::array<std::size_t, Count> order;
    for (std::size_t i = 0; i < Count; ++i) order[i] = i;
    // A device sets a connection up in milliseconds, and an emulated one in many. Checksums are no matter of order.
    const std::size_t every = GetParam().sets_up_quickly && GetParam().iwarp.checksum == false ? 1 : 11;
    std::size_t number = 0;
    connect_once();
    descriptors_ = open_descriptors();
    do {
      if (number++ % every != 0) continue;
      std::array<release, Count> chosen;
      for (std::size_t i = 0; i < Count; ++i) chosen[i] = steps[order[i]];
      trial(chosen, number);
      expect_nothing_left();
      EXPECT_EQ(open_descriptors(), descriptors_);
      EXPECT_EQ(keys(), keys_);
      if (HasFailure()) {
        std::string failed;
        for (const std::size_t step : order) failed += " " + std::to_string(step);
        FAIL() << "in the order" << failed;
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }

  /// Does the steps, some turns after the operations have begun and some between one and the next.
  template <std::size_t Count>
  task<> let_go(holdings& all, const std::array<release, Count>& steps, std::size_t number) {
    for (std::size_t turns = number % 7; turns > 0; --turns) co_await yield();
    for (const release step : steps) {
      step(all);
      for (std::size_t turns = number / 7 % 3; turns > 0; --turns) co_await yield();
    }
  }

  /// Where the device can.
  task<> share_receives(holdings& all, net::connection_options& how) {
    all.queue = co_await peers::share_receives({.depth = 3});
    if (all.queue) how.receives = &*all.queue;
  }
  task<> hold_connections(holdings& all, net::connection_options how) {
    auto ends = co_await connect_pair(how, how);
    all.client.emplace(std::move(ends.client));
    all.server.emplace(std::move(ends.server));
  }

  task<> hold_memory(holdings& all) {
    all.open.emplace(co_await expose_zeros(*all.server, some, everything));
    all.source.emplace(co_await filled(pool(), some, 1));
    all.sink.emplace(co_await zeroed(pool(), some));
    all.message.emplace(co_await zeroed(pool(), 1000));
  }

  task<> hold_a_window(holdings& all) {
    all.region.emplace(
        co_await register_zeros(some, {.usage = mr::usage::bind_window | mr::usage::write_src | mr::usage::read_dst}));
    const mr::slice whole = all.region->slice();
    all.bound.emplace(co_await all.server->expose(whole, everything));
  }

 private:
  std::size_t keys() {
    auto* const domain = dynamic_cast<net::software::domain*>(&device().domain());
    return domain != nullptr ? domain->keys().size() : 0;
  }

  std::size_t descriptors_ = 0;
  std::size_t keys_ = 0;
};
WEFT_ON_EVERY_TRANSPORT(destruction);

/// Operations that go on beside the test, each of which ends.
class attempts {
 public:
  explicit attempts(scope& where) : where_(where) {}
  template <class Operation>
  void add(Operation operation) {
    all_.push_back(std::make_unique<attempt>(where_, begin(*this, std::move(operation))));
  }
  /// An operation has to begin while its connection is there.
  task<> all_begin() {
    while (begun_ != all_.size()) co_await yield();
  }
  task<> all_end() {
    for (const auto& each : all_) co_await each->end();
  }

 private:
  template <class Operation>
  static task<> begin(attempts& self, Operation operation) {
    ++self.begun_;
    static_cast<void>(co_await std::move(operation));
  }

  scope& where_;
  std::vector<std::unique_ptr<attempt>> all_;
  std::size_t begun_ = 0;
};

task<> await_batch(net::connection& at, std::vector<net::transfer> members) { co_await at.batch(members); }

TEST_P(destruction, of_connections_and_memory_in_any_order_with_every_operation_in_flight) {
  constexpr std::array<release, 6> steps = {drop<&holdings::source>, drop_sinks,
                                            drop<&holdings::open>,   drop<&holdings::client>,
                                            drop<&holdings::server>, stop};
  const auto start_all = [&](holdings& all, attempts& operations) -> task<> {
    net::connection& client = *all.client;
    net::connection& server = *all.server;
    const mr::remote_region there = all.open->remote();
    auto note = co_await filled(pool(), 1000, 1);
    auto other = co_await filled(pool(), 1000, 2);
    auto exposed = co_await zeroed(pool(), 100);
    operations.add(client.recv());
    operations.add(client.write(*all.source, there));
    operations.add(client.read(*all.sink, there));
    all.prepared.emplace(client.prepare(there));
    operations.add(all.prepared->write(*all.source));
    operations.add(client.flush(there));
    operations.add(client.send(*all.source));  // larger than a receive: refused
    operations.add(client.send(std::move(note)));
    if (client.capabilities().atomics) operations.add(client.fetch_add(there.slice(8, 8), 1));
    std::vector<net::transfer> members;
    for (int i = 0; i < 20; ++i) members.push_back(client.write(*all.source, there));
    members.push_back(client.flush(there));
    members.push_back(client.send(std::move(other)));
    operations.add(await_batch(client, std::move(members)));
    operations.add(server.expose(std::move(exposed), everything));
    operations.add(server.recv_or_throw());
    operations.add(server.recv_into(*all.message));
    operations.add(server.recv_or_throw());
  };
  in_every_order(steps, [&](const std::array<release, 6>& order, std::size_t number) {
    run([&]() -> task<> {
      holdings all;
      co_await hold_connections(all, hasty());
      co_await hold_memory(all);
      const auto inner = [&](scope& inside) -> task<> {
        all.tasks = &inside;
        attempts operations(inside);
        co_await start_all(all, operations);
        const detail::stop_shield shield(co_await detail::current_promise());
        co_await operations.all_begin();
        co_await let_go(all, order, number);
        co_await operations.all_end();
      };
      co_await with_scope(on_failure::stop_siblings, inner);
    });
  });
}

TEST_P(destruction, of_regions_windows_listeners_and_queues_in_any_order_with_operations_in_flight) {
  constexpr std::array<release, 6> steps = {drop<&holdings::region>, drop<&holdings::bound>,  drop<&holdings::listener>,
                                            drop<&holdings::client>, drop<&holdings::server>, drop<&holdings::queue>};
  const auto start_all = [&](holdings& all, attempts& operations, mr::slice borrowed, bool closes) -> task<> {
    net::connection& client = *all.client;
    const mr::remote_region there = all.bound->remote();
    operations.add(client.recv());
    operations.add(client.write(borrowed, there));
    operations.add(client.read(borrowed, there));
    operations.add(client.flush(there));
    auto note = co_await filled(pool(), 1000, 1);
    operations.add(client.send(std::move(note)));
    operations.add(all.listener->next());
    operations.add(all.server->recv());
    operations.add(all.server->recv());
    operations.add(device().connect(std::string(all.listener->address()), hasty()));
    if (closes) operations.add(client.close());
  };
  open_executor({.ready_order_seed = 1});
  in_every_order(steps, [&](const std::array<release, 6>& order, std::size_t number) {
    run(with_tasks([&](scope& tasks) -> task<> {
      holdings all;
      auto how = hasty();
      co_await share_receives(all, how);
      all.listener.emplace(co_await device().listen(GetParam().any_address));
      co_await hold_connections(all, how);
      co_await hold_a_window(all);
      attempts operations(tasks);
      co_await start_all(all, operations, all.region->slice(), number % 4 == 0);
      co_await operations.all_begin();
      co_await let_go(all, order, number);
      co_await operations.all_end();
    }));
  });
}

TEST_P(destruction, of_what_is_left_after_the_last_run_in_any_order) {
  constexpr std::array<release, 6> steps = {drop<&holdings::queue>,  drop<&holdings::bound>,
                                            drop<&holdings::open>,   drop<&holdings::client>,
                                            drop<&holdings::server>, drop<&holdings::listener>};
  in_every_order(steps, [&](const std::array<release, 6>& order, std::size_t number) {
    holdings all;
    run([&]() -> task<> {
      auto how = hasty();
      co_await share_receives(all, how);
      all.listener.emplace(co_await device().listen(GetParam().any_address));
      co_await hold_connections(all, how);
      co_await hold_memory(all);
      co_await hold_a_window(all);
      for (int i = 0; i < 3; ++i) co_await all.client->send(co_await filled(pool(), 100, 1));
    });
    const bool elsewhere = number % 2 != 0;
    for (const release step : order) elsewhere ? std::thread(step, std::ref(all)).join() : step(all);
    all = {};
    open_executor({});
    connect_once();
  });
}

template <class Operation>
sim::loose_task suspend_on(Operation operation) {
  static_cast<void>(co_await std::move(operation));
}

TEST_P_BETWEEN(destruction, of_a_task_that_is_suspended_on_pool_memory_leaves_the_memory_until_the_transport_is_done) {
  const auto open = co_await expose_zeros(server, large, everything);
  const auto there = open.remote();
  auto source = co_await filled(pool(), large, 1);
  auto sink = co_await zeroed(pool(), large);
  auto given = co_await filled(pool(), 1000, 2);
  auto prepared = client.prepare(there);
  auto other_sink = co_await zeroed(pool(), large);
  auto message = co_await zeroed(pool(), 2000);
  {
    std::vector<net::transfer> members;
    members.push_back(client.write(source, there));
    members.push_back(client.flush(there));
    auto hearing = suspend_on(client.recv());
    auto writing = suspend_on(client.write(source, there));
    auto reading = suspend_on(client.read(sink, there));
    auto writing_prepared = suspend_on(prepared.write(source));
    auto reading_prepared = suspend_on(prepared.read(other_sink));
    auto flushing = suspend_on(client.flush(there));
    auto sending = suspend_on(client.send(std::move(given)));
    auto together = suspend_on(await_batch(client, std::move(members)));
    auto limited = suspend_on(with_timeout(1h, server.recv()));
    auto hearing_here = suspend_on(server.recv_into(message));
    const std::array all{&hearing,          &hearing_here, &writing, &reading,  &writing_prepared,
                         &reading_prepared, &flushing,     &sending, &together, &limited};
    for (const auto* const each : all) each->start(home());
    co_await yield();
    for (const auto* const each : all) EXPECT_FALSE(each->ended());
    EXPECT_TRUE(source.in_use() && sink.in_use() && other_sink.in_use());
  }
  EXPECT_FALSE(message.in_use());
  const auto said = co_await server.recv_into(message);  // it was posted, and nobody took it away
  EXPECT_TRUE(said && holds(message.bytes().first(said->bytes), 2));
  co_await client.flush(there);
  EXPECT_FALSE(source.in_use() || sink.in_use() || other_sink.in_use());
  EXPECT_TRUE(holds(sink.bytes(), 1) && holds(other_sink.bytes(), 1));
  co_await server.send(co_await filled(pool(), 10, 3));
  EXPECT_TRUE(holds((co_await client.recv_or_throw()).bytes(), 3));
}

// At every turn over iwarp, until one has been told; at ever later ones on a device, where that takes thousands.
TEST_P_TASK(destruction, of_a_task_that_turns_a_peer_away_at_any_turn_leaves_the_listener_as_it_was) {
  auto listener = co_await device().listen(GetParam().any_address, {.max_connections = 1});
  const std::string address(listener.address());
  connected only = co_await meet(listener);
  bool told = false;
  for (std::size_t turns = 1; !told; turns += GetParam().sets_up_quickly ? 1 : turns) {
    attempt late(tasks, device().connect(address, options()));
    {
      auto turning_away = suspend_on(listener.next());
      turning_away.start(home());
      for (std::size_t i = 0; i < turns || !turning_away.at_rest(); ++i) co_await yield();
      EXPECT_FALSE(turning_away.ended());
      told = late.ended() && late.code() == std::errc::no_buffer_space;
    }
    co_await settle();
    if (!late.ended()) late.stop();
    co_await late.end();
  }
  co_await when_all(only.client.close(), only.server.close());
  const auto next = [&]() -> task<> {
    for (bool met = false; !met;) {  // those that were left behind come first
      auto request = co_await listener.next();
      const auto failure = co_await failure_of(request->accept(options()));
      met = !failure;
    }
  };
  co_await when_all(device().connect(address, options()), next());
}

TEST_P_BETWEEN(destruction, of_tasks_whose_operations_wait_lets_their_regions_go, options(),
               options({.receive_depth = 1})) {
  auto region = co_await register_zeros(some, {.usage = mr::usage::send | mr::usage::write_src});
  co_await client.send(co_await filled(pool(), 1, 1));  // takes the one credit
  {
    const sim::loose_task sending = suspend_on(failure_of(client.send(region.slice(0, 10))));
    sending.start(home());
    co_await settle();
    EXPECT_EQ(co_await code_of(region.release()), errc::busy);
  }
  if (has_windows()) {
    const auto open = co_await expose_zeros(server, some, everything);
    const std::array<net::list_part, 1> parts{net::list_part{region.slice(), open.remote().slice(0, some)}};
    auto note = co_await filled(pool(), 1, 1);
    const sim::loose_task holding_back = suspend_on(failure_of(client.send(note)));
    const sim::loose_task pushing = suspend_on(failure_of(client.write(parts)));
    for (const sim::loose_task* each : {&holding_back, &pushing}) each->start(home());
    co_await settle();
    EXPECT_EQ(co_await code_of(region.release()), errc::busy);
  }
  co_await region.release();
}

// Whatever the other end has seen of it, the next peer is served.
TEST_P(destruction, of_a_task_that_sets_a_connection_up_at_any_turn_leaves_nothing_of_it) {
  std::array<std::byte, 1> mark{std::byte{1}};
  const auto marked = options({.private_data = mark});
  const auto serve = [&](net::listener& listener) -> task<> {
    for (bool met = false; !met;) {  // those that were left behind come first
      auto request = co_await listener.next();
      met = !request->private_data().empty();
      static_cast<void>(co_await failure_of(request->accept(options())));
    }
  };
  // True once the task has come to its end before it was to be destroyed.
  const auto destroy = [&](scope& tasks, bool client, int turns) -> task<bool> {
    auto listener = co_await device().listen(GetParam().any_address);
    auto connecting = device().connect(std::string(listener.address()), options());
    auto accepting = accept_one(listener, options());
    attempt other(tasks, client ? std::move(accepting) : std::move(connecting));
    bool ended = false;
    {
      const auto victim = suspend_on(failure_of(client ? std::move(connecting) : std::move(accepting)));
      victim.start(home());
      for (int i = 0; i < turns || !victim.at_rest(); ++i) co_await yield();
      ended = victim.ended();
    }
    co_await settle();
    if (!other.ended()) other.stop();
    co_await other.end();
    co_await when_all(device().connect(std::string(listener.address()), marked), serve(listener));
    co_return ended;
  };
  run(with_tasks([&](scope& tasks) -> task<> {
    for (const bool client : {false, true}) {
      for (int turns = 0; !co_await destroy(tasks, client, turns);) turns += 1 + turns / 8;
    }
  }));
}

// The transport could go on to use memory that its owner thinks is free.
TEST_P(destruction, of_a_task_that_is_suspended_on_borrowed_memory_ends_the_program_and_names_the_operation) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto misuse = [&](bool reads) {
    between_peers([&](net::connection& client, net::connection& server) -> task<> {
      const auto open = co_await expose_zeros(server, large, everything);
      const auto there = open.remote();
      const auto region = co_await register_zeros(large, {.usage = mr::usage::write_src | mr::usage::read_dst});
      auto operation = suspend_on(reads ? client.read(region.slice(), there) : client.write(region.slice(), there));
      operation.start(home());
      co_await yield();
    });
  };
  EXPECT_DEATH(misuse(false), "a task was destroyed in the middle of a write on borrowed memory");
  EXPECT_DEATH(misuse(true), "a task was destroyed in the middle of a read on borrowed memory");
}

TEST_P(destruction, of_a_task_in_the_middle_of_a_list_ends_the_program) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto misuse = [&] {
    between_peers([&](net::connection& client, net::connection& server) -> task<> {
      const auto open = co_await expose_zeros(server, large, everything);
      const auto source = co_await zeroed(pool(), large);
      // More than any device does in a turn.
      const std::vector<net::list_part> parts(64, net::list_part{source.slice(), open.remote()});
      auto pushing = suspend_on(client.write(parts));
      pushing.start(home());
      co_await yield();
    });
  };
  EXPECT_DEATH(misuse(), "a task was destroyed in the middle of a list");
}

TEST_P_BETWEEN(destruction, of_a_task_whose_list_waits_for_its_turn_leaves_the_connection_as_it_was, options(),
               options({.receive_depth = 1})) {
  const auto open = co_await expose_zeros(server, 100, everything);
  const auto source = co_await filled(pool(), 100, 1);
  auto first = co_await filled(pool(), 1, 2);
  auto second = co_await filled(pool(), 1, 3);
  attempt sending(tasks, client.send(first));
  attempt waiting(tasks, client.send(second));  // for a credit
  co_await settle();
  const std::array<net::list_part, 1> parts{net::list_part{source.slice(), open.remote()}};
  {
    auto pushing = suspend_on(client.write(parts));
    pushing.start(home());
    co_await yield();
    EXPECT_TRUE(pushing.at_rest());
    EXPECT_FALSE(pushing.ended());
  }
  static_cast<void>(co_await server.recv_or_throw());
  static_cast<void>(co_await server.recv_or_throw());
  co_await waiting.end();
  EXPECT_TRUE(sending.succeeded() && waiting.succeeded());
  co_await client.flush(open.remote());
  EXPECT_TRUE(is_zero(open.memory().bytes()));
}

}  // namespace
}  // namespace weft::test
