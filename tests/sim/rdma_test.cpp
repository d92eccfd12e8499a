// SPDX-License-Identifier: Apache-2.0
// What weft does with devices that are like few: each is the simulated one, made like that.
#include "rdma.hpp"

#include <weft/mr/porting/porting.hpp>
#include <weft/net/verbs/transport.hpp>
#include <weft/weft.hpp>

#include <netinet/in.h>

#include "../unit/stag_of.hpp"
#include "kit/buffers.hpp"
#include "kit/failure.hpp"
#include "kit/held_workers.hpp"
#include "kit/report_list.hpp"
#include "kit/tell.hpp"
#include "kit/test.hpp"
#include "loose_task.hpp"

namespace weft::sim {
namespace {

using namespace std::chrono_literals;
using net::verbs::window_kind;

constexpr const char* address = "127.0.0.1:7471";
constexpr std::uint16_t client_port = 20'000;
constexpr std::chrono::milliseconds dead_peer_after(4000);

const mr::remote_slice nowhere(1, 4096, 1, mr::usage::write_dst);

rdma_traits rnic() {
  rdma_traits made{.is_iwarp = true, .windows = window_kind::none, .has_atomics = false};
  return made;
}

class simulated_rdma : public ::testing::Test {
 protected:
  simulated_rdma() { open({}); }

  /// In the place of the usual device.
  void open(const rdma_traits& traits, const net::verbs_options& chosen = {}) {
    if (below) close();
    below.emplace(place, traits);
    const net::device_options options{.pool = {.huge_pages = false, .system_calls = &place}};
    home.emplace(net::device::open(net::verbs::open_transport(rdma::device_name, *below, chosen), options));
  }

  void TearDown() override { close(); }

  void close() {
    home.reset();
    EXPECT_EQ(below->leaks(), "");
  }

  static net::connection_options usual(std::uint16_t send_depth = net::connection_options().send_depth) {
    net::connection_options options{.send_depth = send_depth, .dead_peer_after = dead_peer_after};
    return options;
  }
  /// Of ends that take the other for a peer that is not weft.
  static net::connection_options foreign() {
    net::connection_options options = usual();
    options.profile = net::profile::interop;
    return options;
  }
  static constexpr mr::registration_options for_windows{.usage = mr::usage::bind_window};

  /// Says to the peer which memory it may use, and what the peer has said.
  task<> tell(net::connection& peer, const mr::remote_region& where) { co_await test::tell(peer, home->pool(), where); }
  static task<mr::remote_region> hear(net::connection& peer) { co_return co_await test::hear_region(peer); }

  task<> send(net::connection& peer, std::size_t bytes) {
    auto memory = co_await home->pool().allocate(bytes);
    co_await peer.send(std::move(memory));
  }

  static task<> hang_up(net::connection& peer) { co_await peer.close(); }
  static task<> close_behind(net::connection& peer) {
    EXPECT_FALSE(co_await peer.recv());
    co_await peer.close();
  }

  // Servers, for run().

  /// Tells the peer of some bytes that it may use, until it closes.
  auto lend(mr::usage uses) {
    return [this, uses](net::connection& peer) -> task<> {
      auto memory = co_await home->pool().allocate(64);
      auto region = co_await home->domain().register_memory(memory.bytes(), {.usage = uses});
      co_await tell(peer, region.remote());
      co_await close_behind(peer);
      co_await region.release();
    };
  }
  static task<> serve_until_the_end(net::connection& peer) { static_cast<void>(co_await as_result(peer.recv())); }

  task<net::exposure> lend_buffer(net::connection& peer, std::size_t bytes = 64) {
    auto memory = co_await test::zeroed(home->pool(), bytes);
    co_return co_await peer.expose(std::move(memory), mr::usage::write_dst);
  }

  template <class Body>
  void run(Body body) {
    executor running(executor_options_);
    running.run(body());
  }
  /// Both ends of a connection, in one executor. A server that is given the request may leave it without one.
  template <class Server, class Client>
  void run(Server server, Client client, const net::connection_options& options = usual()) {
    constexpr bool is_connected = std::invocable<Server&, net::connection&>;
    const auto serving = [&](net::listener& from) -> task<> {
      auto request = co_await from.next();
      if constexpr (is_connected) {
        auto peer = co_await request->accept(options);
        co_await server(peer);
      } else {
        co_await server(*request, options);
      }
    };
    const auto asking = [&]() -> task<> {
      net::connection_options own = options;
      own.source = source;
      auto peer = co_await as_result(home->connect(address, own));
      EXPECT_TRUE(peer || !is_connected) << peer.error().what();
      if (peer) co_await client(*peer);
    };
    run([&]() -> task<> {
      net::listener from = co_await home->listen(address);
      co_await when_all(serving(from), asking());
    });
  }

  std::string source = "127.0.0.1:" + std::to_string(client_port);
  world place{1, {}};
  executor_options executor_options_ = place.options(false);
  std::optional<rdma> below;
  std::optional<net::device> home;
};

// A flush is a read, if of a byte: what it arrives in is open to writes of peers, which the device sees to.
TEST_F(simulated_rdma, an_rnic_flushes) {
  open(rnic());
  const auto ask = [](net::connection& peer) -> task<> {
    const auto there = co_await hear(peer);
    co_await peer.flush(there.slice(0, 8));
    co_await peer.close();
  };
  run(lend(mr::usage::read_src), ask);
}

TEST_F(simulated_rdma, all_memory_at_once_serves_operations_of_this_side_where_the_device_pages_on_demand) {
  constexpr std::size_t bytes = 3000;
  constexpr mr::usage uses = mr::usage::send | mr::usage::recv | mr::usage::read_dst | mr::usage::write_src;
  const auto serve = [&](net::connection& peer) -> task<> {
    auto all = co_await home->domain().register_memory(mr::everything(), {.usage = uses});
    std::vector<std::byte> lent(bytes);
    auto region =
        co_await home->domain().register_memory(std::span(lent), {.usage = mr::usage::write_dst | mr::usage::read_src});
    co_await tell(peer, region.remote());
    std::vector<std::byte> received(bytes);
    EXPECT_TRUE(co_await peer.recv_into(all.slice(received)));
    EXPECT_TRUE(test::holds(received, 2));
    EXPECT_TRUE(test::holds(lent, 1));
    co_await close_behind(peer);
    co_await region.release();
    co_await all.release();
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    auto all = co_await home->domain().register_memory(mr::everything(), {.usage = uses});
    const auto there = co_await hear(peer);
    std::vector<std::byte> own(bytes);
    std::vector<std::byte> back(bytes);
    test::fill(own, 1);
    co_await peer.write(all.slice(own), there);
    co_await peer.read(all.slice(back), there);
    EXPECT_TRUE(test::holds(back, 1));
    test::fill(own, 2);
    co_await peer.send(all.slice(own));
    co_await peer.close();
    co_await all.release();
  };
  run(serve, ask);
  open({.pages_on_demand = false});
  EXPECT_FALSE(home->domain().capabilities().everything);
}

// irdma, erdma and siw have room for less than most, and refuse a queue pair that asks for more.
TEST_F(simulated_rdma, small_messages_go_inline_where_there_is_room_for_them) {
  open({.most_inline = 80});
  const auto receive = [](net::connection& peer) -> task<> {
    static_cast<void>(co_await peer.recv_or_throw());
    co_await close_behind(peer);
  };
  const auto send_one = [&](net::connection& peer) -> task<> {
    const unsigned before = below->inline_requests();
    co_await send(peer, 32);
    EXPECT_EQ(below->inline_requests() - before, 1u);
    co_await peer.close();
  };
  run(receive, send_one);
}

// The address is the other device's, and whoever listens over that one next must not find it in use.
TEST_F(simulated_rdma, listening_at_an_address_of_another_device_leaves_it_free_once_it_has_failed) {
  const auto listen_as_the_other_device = [this](sockaddr_in where) {
    rdma_event_channel* channel = nullptr;
    rdma_cm_id* id = nullptr;
    EXPECT_EQ(below->create_event_channel(&channel), 0);
    EXPECT_EQ(below->create_id(channel, nullptr, &id), 0);
    EXPECT_EQ(below->bind_addr(id, reinterpret_cast<sockaddr*>(&where)), 0);
    const int result = below->listen(id, 1);
    EXPECT_EQ(below->destroy_id(id), 0);
    below->destroy_event_channel(channel);
    return result;
  };
  run([&]() -> task<> {
    EXPECT_EQ(co_await test::code_of(home->listen("127.0.0.2:7471")), errc::wrong_device);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(7471);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    EXPECT_EQ(listen_as_the_other_device(where), 0);
  });
}

// InfiniBand's devices wait for a receiver that is slow. An RNIC does not, so what has no answer has no peer.
TEST_F(simulated_rdma, a_send_of_an_rnic_does_not_wait_for_a_peer_that_has_gone) {
  open(rnic());
  const auto ask = [&](net::connection& peer) -> task<> {
    const time_point start = place.now();
    below->cut(client_port);
    EXPECT_EQ(co_await test::code_of(send(peer, 64)), errc::peer_vanished);
    EXPECT_LE(place.now() - start, dead_peer_after * 3 / 2);
  };
  run(serve_until_the_end, ask);
}

// It may not speak before its peer has, and so cannot ask whether that is still there. But a weft peer speaks at once.
TEST_F(simulated_rdma, an_rnic_does_not_wait_for_the_first_message_of_a_peer_that_has_gone) {
  open(rnic());
  bool has_waited = false;
  const auto serve = [&](net::connection_request& from, const net::connection_options& options) -> task<> {
    below->cut(client_port);
    auto peer = co_await from.accept(options);
    const time_point start = place.now();
    EXPECT_EQ(co_await test::code_of(peer.recv()), errc::peer_vanished);
    EXPECT_LE(place.now() - start, dead_peer_after * 3 / 2);
    has_waited = true;
  };
  const auto ask = [](net::connection&) -> task<> { co_return; };
  run(serve, ask);
  EXPECT_TRUE(has_waited);
}

// The kernel's siw binds the port that the connection manager has chosen, which TCP may have given to somebody else.
TEST_F(simulated_rdma, an_rnic_whose_port_is_in_use_is_given_another_one) {
  rdma_traits traits = rnic();
  traits.ports_in_use = 3;
  open(traits);
  source = "127.0.0.1:0";
  run(close_behind, hang_up);
}

// What an RNIC tells of a write may be no more than that TCP has it: nothing of the peer.
TEST_F(simulated_rdma, an_rnic_notices_that_its_peer_has_gone_however_many_writes_succeed) {
  rdma_traits traits = rnic();
  traits.completes_when_sent = true;
  open(traits);
  const auto ask = [&](net::connection& peer) -> task<> {
    std::error_code sending;
    duration waited{};
    const time_point start = place.now();
    below->cut(client_port);
    while (!sending && waited < 10 * dead_peer_after) {
      auto memory = co_await home->pool().allocate(1);
      sending = co_await test::code_of(peer.write(std::move(memory), nowhere));
      waited = place.now() - start;
      co_await sleep_for(dead_peer_after / 8);
    }
    EXPECT_EQ(sending, errc::peer_vanished);
    EXPECT_LE(waited, dead_peer_after * 5 / 2);
  };
  run(serve_until_the_end, ask);
}

// Of what it has to ask for again, Soft-RoCE takes an atomic operation or a short read for done when its peer answers a
// write before it once more.
TEST_F(simulated_rdma, soft_roce_yields_what_was_found_whatever_answers_are_lost) {
  open({.like_rxe = true,
        .leaves_completions = true,
        .tells_of_refusals = false,
        .keeps_late_receives = true,
        .one_answer_lost_in = 4});
  const auto ask = [&](net::connection& peer) -> task<> {
    const auto word = (co_await hear(peer)).slice(0, 8);
    auto own = co_await home->pool().allocate(8);
    auto sink = co_await home->pool().allocate(8);
    for (std::uint64_t turn = 1; turn <= 100; ++turn) {
      const std::uint64_t value = turn << 8;
      std::memcpy(own.data(), &value, sizeof value);
      std::array<net::transfer, 2> counting{peer.write(own, word), peer.fetch_add(word, 1)};
      co_await peer.batch(counting);
      EXPECT_EQ(counting[1].value(), value);
      std::array looking{peer.write(own, word), peer.read(sink, word)};
      co_await peer.batch(looking);
      EXPECT_EQ(std::memcmp(sink.data(), &value, sizeof value), 0) << turn;
    }
    co_await peer.close();
  };
  run(lend(mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst), ask);
}

class flushes_of_simulated_rdma : public simulated_rdma {
 protected:
  static constexpr mr::usage durable = mr::usage::write_dst | mr::usage::read_src | mr::usage::flush_persistent;
  static constexpr auto persistent = net::flush_type::persistent;

  flushes_of_simulated_rdma() { open({.has_flush = true}); }
  static net::connection_options both_ends() {
    net::connection_options options = usual();
    options.persistent_flush = true;
    return options;
  }
  auto lend_until_the_end(mr::usage uses) {
    return [this, uses](net::connection& peer) -> task<> {
      auto pages = co_await home->pool().allocate(64);
      auto region = co_await home->domain().register_memory(pages.bytes(), {.usage = uses});
      static_cast<void>(co_await as_result(tell(peer, region.remote())));
      co_await serve_until_the_end(peer);
      co_await region.release();
    };
  }
};

TEST_F(flushes_of_simulated_rdma, make_persistent_what_was_written_before_them) {
  std::span<std::byte> memory;
  const auto serve = [&](net::connection& peer) -> task<> {
    auto pages = co_await test::zeroed(home->pool(), 64);
    memory = pages.bytes();
    auto region = co_await home->domain().register_memory(memory, {.usage = durable});
    EXPECT_EQ(region.remote().places().size(), 1u);  // none by which the owner is asked
    co_await tell(peer, region.remote());
    co_await close_behind(peer);
    co_await region.release();
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    EXPECT_TRUE(peer.capabilities().device_flush);
    const auto there = co_await hear(peer);
    auto own = co_await test::filled(home->pool(), 64, 7);
    auto back = co_await test::zeroed(home->pool(), 64);
    co_await peer.write(own, there);
    co_await peer.flush(there);
    EXPECT_FALSE(below->is_persistent(memory));
    const auto half = there.slice(0, 32);
    std::array some{peer.write(own, there), peer.flush(half, persistent), peer.read(back, there),
                    peer.flush(half, persistent)};
    co_await peer.batch(some);
    EXPECT_TRUE(below->is_persistent(memory.first(32)));
    EXPECT_FALSE(below->is_persistent(memory));
    EXPECT_TRUE(test::holds(back.bytes(), 7));
    co_await peer.flush(there, persistent);
    EXPECT_TRUE(below->is_persistent(memory));
    co_await peer.close();
  };
  run(serve, ask, both_ends());
  open({.like_rxe = true, .keeps_late_receives = true, .has_flush = true, .one_answer_lost_in = 4});
  for (int i = 0; i != 8; ++i) run(serve, ask, both_ends());
}

TEST_F(flushes_of_simulated_rdma, of_memory_that_the_peer_does_not_flush_are_refused) {
  const auto ask = [](net::connection& peer) -> task<> {
    const auto there = co_await hear(peer);
    EXPECT_EQ(co_await test::code_of(peer.flush(there, persistent)), errc::access_denied);
    const mr::remote_region lie(there.key(), there.address(), there.size(), durable);
    EXPECT_EQ(co_await test::code_of(peer.flush(lie, persistent)), errc::remote_access);
  };
  run(lend_until_the_end(mr::usage::write_dst), ask, both_ends());
}

TEST_F(flushes_of_simulated_rdma, need_the_option_and_a_driver_that_knows_them) {
  std::vector<std::string> words;
  const auto serve = lend(durable);
  const auto ask = [&](net::connection& peer) -> task<> {
    EXPECT_FALSE(peer.capabilities().device_flush);
    const auto there = co_await hear(peer);
    words.push_back(co_await test::words_of(peer.flush(there, persistent)));
    co_await peer.flush(there);  // the connection goes on
    co_await peer.close();
  };
  run(serve, ask);
  EXPECT_TRUE(test::contains(words.at(0), "persistent_flush at both ends"));
  open({.has_flush = true, .driver_has_flush = false});
  run(serve, ask, both_ends());
  EXPECT_TRUE(test::contains(words.at(1), "rdma-core 46"));
}

TEST_F(flushes_of_simulated_rdma, end_as_does_what_is_behind_them_wherever_the_device_takes_no_more) {
  const auto serve = lend_until_the_end(durable);
  const auto ask = [&](net::connection& peer) -> task<> {
    const auto there = co_await hear(peer);
    auto own = co_await test::filled(home->pool(), 64, 7);
    below->fail_post(client_port, true);  // any of three
    std::array some{peer.flush(there, persistent), peer.write(own, there), peer.flush(there, persistent)};
    EXPECT_FALSE(co_await as_result(peer.batch(some)));
    EXPECT_TRUE(some.back().failure());
    EXPECT_TRUE(std::is_sorted(some.begin(), some.end(), [](const net::transfer& one, const net::transfer& other) {
      return !one.failure() && other.failure();
    }));
  };
  for (int i = 0; i != 12; ++i) run(serve, ask, both_ends());
}

TEST_F(flushes_of_simulated_rdma, are_for_whole_regions_and_not_for_loans) {
  const auto serve = [&](net::connection& peer) -> task<> {
    auto pages = co_await test::zeroed(home->pool(), 64);
    auto region = co_await home->domain().register_memory(pages.bytes(), {.usage = durable | mr::usage::bind_window});
    const std::string words = co_await test::words_of(peer.expose(region.slice(), durable));
    EXPECT_TRUE(test::contains(words, "the key of its region")) << words;
    co_await region.release();
    co_await peer.close();
  };
  run(serve, close_behind, both_ends());
}

class atomic_writes_of_simulated_rdma : public flushes_of_simulated_rdma {
 protected:
  atomic_writes_of_simulated_rdma() { open({.has_flush = true, .has_atomic_write = true}); }
};

TEST_F(atomic_writes_of_simulated_rdma, are_the_writes_of_a_word_and_keep_their_place_behind_a_flush) {
  std::span<std::byte> memory;
  const auto serve = [&](net::connection& peer) -> task<> {
    auto pages = co_await test::zeroed(home->pool(), 64);
    memory = pages.bytes();
    auto region = co_await home->domain().register_memory(memory, {.usage = durable});
    co_await tell(peer, region.remote());
    co_await close_behind(peer);
    EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{7}), 64);
    co_await region.release();
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    EXPECT_TRUE(peer.capabilities().device_atomic_write);
    const auto there = co_await hear(peer);
    const auto body = there.slice(8, 56);
    const auto word = there.slice(0, 8);
    auto own = co_await test::filled_with(home->pool(), 64, std::byte{7});
    auto eight = co_await test::filled_with(home->pool(), 8, std::byte{7});
    const unsigned before = below->atomic_writes();
    std::array some{peer.write(own.slice(8, 56), body), peer.flush(body, persistent), peer.write(eight, word),
                    peer.flush(word, persistent)};
    co_await peer.batch(some);
    EXPECT_TRUE(below->is_persistent(memory));
    EXPECT_EQ(below->atomic_writes() - before, 1u);
    for (int i = 0; i != 20; ++i) co_await peer.write(eight, word);  // more than there are reads
    EXPECT_EQ(below->atomic_writes() - before, 21u);
    co_await peer.write(own.slice(0, 16), there.slice(0, 16));
    co_await peer.write(eight, there.slice(12, 8));
    co_await peer.write(own.slice(0, 4), there.slice(8, 4));
    EXPECT_EQ(below->atomic_writes() - before, 21u);  // these are none
    co_await peer.close();
  };
  run(serve, ask, both_ends());
  open({.like_rxe = true,
        .keeps_late_receives = true,
        .has_flush = true,
        .has_atomic_write = true,
        .one_answer_lost_in = 4});
  for (int i = 0; i != 8; ++i) run(serve, ask, both_ends());
}

loose_task write_loosely(net::connection& peer, mr::buffer source, mr::remote_slice where) {
  co_await peer.write(std::move(source), where);
}

TEST_F(atomic_writes_of_simulated_rdma, of_frames_that_go_at_any_turn_write_their_word_or_nothing) {
  const auto ask = [&](net::connection& peer) -> task<> {
    const auto there = co_await hear(peer);
    const auto word = there.slice(0, 8);
    const unsigned before = below->atomic_writes();
    for (int turns = 0; turns < 20; ++turns) {
      auto eight = co_await test::filled_with(home->pool(), 8, static_cast<std::byte>(turns + 1));
      below->stall(client_port, 1ms);
      const auto write_for_a_while = [&]() -> task<> {
        const loose_task writing = write_loosely(peer, std::move(eight), word);
        writing.start(*executor::current());
        for (int i = 0; i < turns; ++i) co_await yield();
        while (!writing.at_rest()) co_await yield();
      };
      co_await write_for_a_while();
      const auto next = co_await test::filled_with(home->pool(), 8, std::byte{0xEE});  // maybe where the source was
      auto back = co_await test::zeroed(home->pool(), 8);
      co_await peer.read(back, word);
      const std::byte found = back.bytes().front();
      EXPECT_EQ(std::count(back.bytes().begin(), back.bytes().end(), found), 8);
      EXPECT_LE(found, static_cast<std::byte>(turns + 1));
    }
    EXPECT_GT(below->atomic_writes(), before);
    co_await peer.close();
  };
  run(lend(durable), ask, both_ends());
}

TEST_F(atomic_writes_of_simulated_rdma, need_the_option_and_a_device_that_has_them) {
  const auto serve = lend(durable);
  const auto ask = [&](net::connection& peer) -> task<> {
    EXPECT_FALSE(peer.capabilities().device_atomic_write);
    const auto there = co_await hear(peer);
    auto eight = co_await test::filled(home->pool(), 8, 7);
    co_await peer.write(eight, there.slice(0, 8));
    EXPECT_EQ(below->atomic_writes(), 0u);
    co_await peer.close();
  };
  run(serve, ask);
  open({.has_flush = true});
  run(serve, ask, both_ends());
}

TEST_F(atomic_writes_of_simulated_rdma, end_with_the_connection_if_the_peer_refuses_them) {
  const auto ask = [&](net::connection& peer) -> task<> {
    const auto there = co_await hear(peer);
    auto eight = co_await test::filled(home->pool(), 8, 7);
    const mr::remote_region lie(there.key(), there.address(), there.size(), mr::usage::write_dst);
    EXPECT_EQ(co_await test::code_of(peer.write(eight, lie.slice(0, 8))), errc::remote_access);
  };
  run(lend_until_the_end(mr::usage::read_src), ask, both_ends());
}

// What the queue holds at a time goes out with one; beyond that, one is for a quarter of the queue.
TEST_F(simulated_rdma, lists_of_blocks_take_few_doorbells_and_few_completions) {
  const auto ask = [&](net::connection& peer) -> task<> {
    const auto there = co_await hear(peer);
    const auto own = co_await home->pool().allocate(64);
    std::vector<net::block_pair> pairs(256, net::block_pair{.local = 1, .remote = 3});
    net::block_list all{.local = own.slice(), .remote = there, .block_bytes = 8, .blocks = pairs};
    unsigned before = below->doorbells();
    co_await peer.write(all);
    EXPECT_EQ(below->doorbells() - before, 1u);
    pairs.resize(std::size_t{256} * 16, net::block_pair{});
    all.blocks = pairs;
    before = below->doorbells();
    const unsigned completions_before = below->completions();
    co_await peer.write(all);
    const unsigned many = below->doorbells() - before;
    const unsigned completions = below->completions() - completions_before;
    EXPECT_GT(many, 0u);
    EXPECT_LE(many, 16u * 4);
    EXPECT_GE(completions, 16u);
    EXPECT_LE(completions, 256u * 16 / 16);
    co_await peer.close();
  };
  run(lend(mr::usage::write_dst), ask, usual(256));
}

task<> end_of(net::list_operation& list) { co_await list; }

// So that a peer that dies meanwhile is noticed as soon as with one large write after another.
TEST_F(simulated_rdma, lists_of_large_blocks_have_a_completion_for_each_mebibyte) {
  constexpr std::uint64_t large = 1 << 20;
  constexpr unsigned count = 64;
  const auto serve = [&](net::connection& peer) -> task<> {
    const auto lent = co_await lend_buffer(peer, large);
    co_await tell(peer, lent.remote());
    co_await close_behind(peer);
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    const auto there = co_await hear(peer);
    const auto own = co_await test::filled_with(home->pool(), large, std::byte{1});
    const std::vector<net::block_pair> pairs(count);
    const net::block_list all{.local = own.slice(), .remote = there, .block_bytes = large, .blocks = pairs};
    const unsigned before = below->completions();
    co_await peer.write(all);
    EXPECT_GE(below->completions() - before, count);
    co_await peer.close();
  };
  run(serve, ask, usual(256));
}

class lists_on_simulated_rdma : public simulated_rdma {
 protected:
  static constexpr std::uint32_t block = 8;
  static constexpr std::uint32_t blocks = 8;  // that lend() lends

  /// Like lend(), to a peer that may break the connection off.
  auto lend_to_vandal() {
    return [this](net::connection& peer) -> task<> {
      auto memory = co_await home->pool().allocate(block * blocks);
      auto region = co_await home->domain().register_memory(memory.bytes(),
                                                            {.usage = mr::usage::write_dst | mr::usage::read_src});
      static_cast<void>(co_await as_result(tell(peer, region.remote())));
      co_await serve_until_the_end(peer);
      static_cast<void>(co_await as_result(peer.close()));
      co_await region.release();
    };
  }

  /// What the peer has lent, and as much again that it has not.
  static mr::remote_slice beyond(const mr::remote_region& lent) {
    const mr::remote_slice real = lent.slice(0, block * blocks);
    return {real.key(), real.address(), 2 * real.size(), mr::usage::write_dst | mr::usage::read_src};
  }
  /// Of which all but one lie within what was lent.
  static std::vector<net::block_pair> pairs_with_a_bad_one(std::uint32_t count, std::uint32_t bad) {
    std::vector<net::block_pair> pairs(count);
    for (std::uint32_t i = 0; i != count; ++i) pairs[i] = {.local = i % blocks, .remote = i % blocks};
    pairs[bad].remote = blocks;
    return pairs;
  }
  static void expect_no_rest(const net::connection& peer) {
    EXPECT_EQ(peer.statistics().in_flight, 0u);
    EXPECT_EQ(peer.statistics().waiting, 0u);
  }
};

// The completion of a request that has failed says which one it is, also if it was not to be told of. Who hears first
// that the peer has gone, for that reason, while there is more to be posted, says at which element the list has waited.
TEST_F(lists_on_simulated_rdma, of_which_any_element_is_refused_have_written_those_before_it) {
  const auto is_one_of = [](std::error_code code) {
    return code == errc::remote_access || code == errc::peer_vanished;
  };
  enum class form : std::uint8_t { write_of_blocks, read_of_blocks, write_of_parts };
  for (const form how : {form::write_of_blocks, form::read_of_blocks, form::write_of_parts}) {
    for (const std::uint32_t bad : {0u, 1u, 14u, 15u, 16u, 17u, 126u, 127u, 128u, 200u, 298u, 299u}) {
      const std::uint32_t count = bad < 128 ? 128 : 300;
      const auto ask = [&](net::connection& peer) -> task<> {
        const auto there = beyond(co_await hear(peer));
        const auto own = co_await home->pool().allocate(block * blocks);
        const auto pairs = pairs_with_a_bad_one(count, bad);
        std::vector<net::list_part> parts;
        for (const auto& [local, remote] : pairs) {
          parts.push_back({own.slice().subslice(local * block, block), there.slice(remote * block, block)});
        }
        const net::block_list all{.local = own.slice(), .remote = there, .block_bytes = block, .blocks = pairs};
        net::list_operation list = how == form::write_of_blocks  ? peer.write(all)
                                   : how == form::read_of_blocks ? peer.read(all)
                                                                 : peer.write(parts);
        const auto ended = co_await as_result(end_of(list));
        EXPECT_FALSE(ended);
        if (ended) co_return;
        const std::string words = ended.error().what();
        EXPECT_TRUE(is_one_of(ended.error().code())) << words;
        EXPECT_TRUE(ended.error().posted());
        const std::string which = "element " + std::to_string(bad) + " of a list of 128";
        EXPECT_TRUE(count != 128 || words.starts_with(which)) << words;
        EXPECT_EQ(list.done(), bad);
        const auto counted = peer.statistics();
        const auto& of_kind = how == form::read_of_blocks ? counted.reads : counted.writes;
        EXPECT_EQ(of_kind.posted - of_kind.failed, bad);
        EXPECT_EQ(of_kind.bytes, of_kind.posted * block);
        expect_no_rest(peer);
        static_cast<void>(co_await as_result(peer.close()));
      };
      run(lend_to_vandal(), ask, usual(128));
    }
  }
}

// Elements take room in the queue, and no slot. The device would say that it overflows.
TEST_F(lists_on_simulated_rdma, leave_what_waits_behind_them_no_more_room_than_there_is) {
  const auto ask = [&](net::connection& peer) -> task<> {
    const auto there = (co_await hear(peer)).slice(0, block * blocks);
    auto own = co_await home->pool().allocate(block * blocks);
    const std::vector<net::block_pair> pairs(100);
    const net::block_list all{.local = own.slice(), .remote = there, .block_bytes = block, .blocks = pairs};
    std::uint64_t most = 0;
    const auto list = [&]() -> task<> { co_await peer.write(all); };
    const auto many = [&]() -> task<> {
      std::vector<net::transfer> members;
      for (int i = 0; i != 100; ++i)
        members.push_back(peer.write(own.slice().subslice(0, block), there.slice(0, block)));
      co_await peer.batch(members);
    };
    const auto look = [&]() -> task<> {
      do {
        most = std::max(most, peer.statistics().in_flight);
        co_await yield();
      } while (peer.statistics().in_flight + peer.statistics().waiting != 0);
    };
    co_await when_all(list(), many(), list(), many(), look());
    EXPECT_EQ(most, 32u);
    EXPECT_EQ(peer.statistics().writes.posted, 400u);
    EXPECT_EQ(peer.statistics().writes.failed, 0u);
    co_await peer.close();
  };
  run(lend_to_vandal(), ask, usual(32));
}

TEST_F(lists_on_simulated_rdma, end_with_the_connection_wherever_they_are) {
  unsigned in_the_middle = 0;
  for (int turns = 0; turns != 120; ++turns) {
    const bool refuses = turns % 2 != 0;
    const auto ask = [&](net::connection& peer) -> task<> {
      const auto there = (co_await hear(peer)).slice(0, block * blocks);
      const auto own = co_await home->pool().allocate(block * blocks);
      const std::vector<net::block_pair> pairs(500);
      const net::block_list all{.local = own.slice(), .remote = there, .block_bytes = block, .blocks = pairs};
      auto list = peer.write(all);
      const auto write = [&]() -> task<> {
        const auto ended = co_await as_result(end_of(list));
        EXPECT_EQ(static_cast<bool>(ended), list.done() == list.size());
        if (!ended && list.done() != 0) ++in_the_middle;
      };
      const auto harm = [&]() -> task<> {
        for (int i = 0; i != turns / 2; ++i) co_await sleep_for(200ns);
        refuses ? below->fail_post(client_port, true) : below->break_off(client_port);
      };
      co_await when_all(write(), harm());
      expect_no_rest(peer);
      static_cast<void>(co_await as_result(peer.close()));
    };
    run(lend_to_vandal(), ask, usual(32));
  }
  EXPECT_GT(in_the_middle, 20u);
}

// And not that this end has closed it, which it has not.
TEST_F(simulated_rdma, an_exposure_says_why_its_connection_ended_meanwhile) {
  int ended = 0;
  const auto serve = [&](net::connection& peer) -> task<> {
    static_cast<void>(co_await as_result(send(peer, 4)));
    co_await serve_until_the_end(peer);
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    static_cast<void>(co_await peer.recv_or_throw());
    auto memory = co_await home->pool().allocate(64);
    const auto lend = [&]() -> task<> {
      const auto lent = co_await as_result(peer.expose(std::move(memory), mr::usage::write_dst));
      if (lent) co_return;
      ++ended;
      EXPECT_NE(lent.error().code(), errc::closed) << lent.error().what();
    };
    const auto harm = [&]() -> task<> {
      below->break_off(client_port);
      co_return;
    };
    co_await when_all(lend(), harm());
  };
  for (int i = 0; i < 50; ++i) run(serve, ask);
  EXPECT_GT(ended, 10);
}

TEST_F(simulated_rdma, a_fault_that_finds_nobody_disturbs_nobody) {
  const auto harm = [&] {
    below->break_off(client_port);
    below->cut(client_port);
    below->stall(client_port, 1ms);
    below->fail_post(client_port, true);
    below->fail_post(client_port, false);
  };
  harm();
  run(close_behind, hang_up);
  harm();
  EXPECT_FALSE(place.disturbed(client_port));
  EXPECT_EQ(place.faults(), 0U);
}

// What a user does who hears that the connection has ended: the window goes, and with it its memory. Whenever that is,
// the device has let go of it before.
TEST_F(simulated_rdma, a_window_is_taken_back_before_its_memory_however_far_the_end_has_come) {
  for (const window_kind kind : {window_kind::type_1, window_kind::type_2b}) {
    open({.windows = kind}, {.allow_shared_windows = true});
    for (duration after{}; after < 20us; after += 100ns) {
      const bool unbinds = (after / 100ns) % 2 != 0;
      const auto serve = [&](net::connection& peer) -> task<> {
        auto memory = co_await home->pool().allocate(64);
        auto region = co_await home->domain().register_memory(memory.bytes(), for_windows);
        {
          net::exposure lent = co_await peer.expose(region.slice(0, 64), mr::usage::write_dst);
          below->break_off(client_port);
          EXPECT_FALSE(co_await as_result(peer.recv()));
          co_await sleep_for(after);
          if (unbinds) {
            co_await lent.revoke();
            EXPECT_EQ(below->windows(), 0u) << after.count();
          }
        }
        co_await region.release();
        EXPECT_EQ(below->windows(), 0u) << after.count();
      };
      const auto ask = [](net::connection& peer) -> task<> { EXPECT_FALSE(co_await as_result(peer.recv())); };
      run(serve, ask);
    }
  }
}

// A device may take its time for that, and others of the executor's have theirs.
TEST_F(simulated_rdma, an_executor_takes_nothing_back_itself) {
  for (const bool like_rxe : {false, true}) {  // there a window has a region of its own
    open({.like_rxe = like_rxe});
    const auto lend_exposures = [&](net::connection& peer) -> task<> {
      { const net::exposure dropped = co_await lend_buffer(peer); }
      net::exposure returned = co_await lend_buffer(peer);
      const mr::buffer back = co_await returned.revoke();
      EXPECT_EQ(back.size(), 64u);
      net::exposure retired = co_await lend_buffer(peer);
      const std::uint32_t key = test::stag_of(retired.remote());
      retired.retire();
      peer.confirm_retired(key);
      co_await sleep_for(1ms);
      EXPECT_EQ(below->open_windows(), 0u);
    };
    const auto lend_windows = [&](net::connection& peer) -> task<> {
      std::vector<std::byte> bytes(64);
      auto borrowed = co_await home->domain().register_memory(std::span(bytes), for_windows);
      { const net::exposure dropped = co_await peer.expose(borrowed.slice(), mr::usage::write_dst); }
      co_await mr::porting::refresh(borrowed);
      auto unbound = co_await peer.expose(borrowed.slice(), mr::usage::write_dst);
      co_await unbound.revoke();
      { const net::exposure dropped = co_await peer.expose(borrowed.slice(), mr::usage::write_dst); }
      co_await borrowed.release();
      EXPECT_EQ(below->open_windows(), 0u);
      std::vector<std::byte> other(64);
      auto owned = co_await home->domain().register_memory(std::move(other), for_windows);
      auto outlasting = co_await peer.expose(owned.slice(), mr::usage::write_dst);
      { const mr::region closed = std::move(owned); }
      { const net::exposure dropped = std::move(outlasting); }
      co_await sleep_for(1ms);
      EXPECT_EQ(below->open_windows(), 0u);
    };
    const auto serve = [&](net::connection& peer) -> task<> {
      co_await lend_exposures(peer);
      co_await lend_windows(peer);
      std::vector<std::byte> bytes(64);
      auto region = co_await home->domain().register_memory(std::span(bytes), for_windows);
      {
        const net::exposure kept = co_await lend_buffer(peer);
        const net::exposure bound = co_await peer.expose(region.slice(), mr::usage::write_dst);
        co_await peer.close();
      }
      co_await region.release();
    };
    run(serve, close_behind);
    EXPECT_EQ(below->hold_ups(), 0u);
  }
}

/// Lends one buffer after the other, which the peer writes to, and at last has the peer try its first key again.
class simulated_windows : public simulated_rdma {
 protected:
  void lend_in_turn(bool given_back) {
    constexpr int times = 20;
    const auto serve = [&](net::connection& peer) -> task<> {
      for (int i = 0; i < times; ++i) {
        net::exposure lent = co_await lend_buffer(peer);
        co_await tell(peer, lent.remote());
        auto answer = co_await peer.recv();
        EXPECT_TRUE(answer);
        const mr::buffer back = co_await lent.revoke();
        EXPECT_EQ(back.bytes()[0], std::byte(7));
        EXPECT_EQ(below->open_windows(), 0u);
        EXPECT_EQ(below->windows(), 1u);
      }
      const net::exposure last = co_await lend_buffer(peer);
      co_await tell(peer, last.remote());
      EXPECT_FALSE(co_await as_result(peer.recv()));
      EXPECT_EQ(last.memory().bytes()[0], std::byte(0));
    };
    const auto ask = [&](net::connection& peer) -> task<> {
      std::optional<mr::remote_region> first;
      auto sevens = co_await test::filled_with(home->pool(), 64, std::byte{7});
      for (int i = 0; i < times; ++i) {
        const mr::remote_region where = co_await hear(peer);
        if (!first) first = where;
        co_await peer.write(sevens, where);
        auto answer = co_await home->pool().allocate(4);
        net::send_options how;
        if (given_back) how.invalidate = test::stag_of(where);
        co_await peer.send(std::move(answer), how);
      }
      co_await peer.recv_or_throw();
      EXPECT_EQ(co_await test::code_of(peer.write(sevens, *first)), errc::remote_access);
    };
    run(serve, ask);
    EXPECT_EQ(below->hold_ups(), 0u);
  }
};

TEST_F(simulated_windows, that_are_revoked_or_given_back_are_bound_again_and_their_earlier_keys_open_nothing) {
  for (const bool given_back : {false, true}) lend_in_turn(given_back);
}

// The owner knows that from elsewhere, and has not received the message yet. A device may take a second invalidation
// for an error.
TEST_F(simulated_windows, that_the_peer_has_given_back_are_not_invalidated_again) {
  std::uint32_t key = 0;
  event lent;
  event given_back;
  const auto serve = [&](net::connection& peer) -> task<> {
    for (int i = 0; i < 100; ++i) {
      net::exposure open_to_peer = co_await lend_buffer(peer);
      key = test::stag_of(open_to_peer.remote());
      lent.set();
      co_await given_back.wait();
      given_back.reset();
      co_await open_to_peer.revoke();
      EXPECT_TRUE(co_await peer.recv());
    }
    EXPECT_EQ(below->windows(), 1u);
    co_await peer.close();
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    for (int i = 0; i < 100; ++i) {
      co_await lent.wait();
      lent.reset();
      auto message = co_await home->pool().allocate(4);
      co_await peer.send(std::move(message), {.invalidate = key});
      given_back.set();
    }
    EXPECT_FALSE(co_await peer.recv());
  };
  run(serve, ask);
  EXPECT_EQ(below->hold_ups(), 0u);
}

// It waits for nobody: what is left of its windows it does itself.
TEST_F(simulated_rdma, a_region_that_borrows_may_go_right_behind_its_window) {
  const auto serve = [&](net::connection& peer) -> task<> {
    auto memory = co_await home->pool().allocate(64);
    for (int i = 0; i < 20; ++i) {
      const mr::region region = co_await home->domain().register_memory(memory.bytes(), for_windows);
      net::exposure bound = co_await peer.expose(region.slice(), mr::usage::write_dst);
      if (i % 2 != 0) bound.retire();
      if (i % 2 != 0) peer.confirm_retired(bound.remote().key());
    }
    EXPECT_EQ(below->windows(), 0u);
    co_await peer.close();
  };
  run(serve, close_behind);
}

// Regions may overlap: what an application registers, and what a cache does. A window keeps its own registered, and no
// other.
TEST_F(simulated_rdma, a_window_is_bound_to_the_region_whose_slice_was_given) {
  const auto serve = [&](net::connection& peer) -> task<> {
    auto memory = co_await home->pool().allocate(64);
    for (const bool younger : {false, true}) {
      auto first = co_await home->domain().register_memory(memory.bytes(), for_windows);
      auto second = co_await home->domain().register_memory(memory.bytes(), for_windows);
      mr::region& kept = younger ? second : first;
      mr::region& other = younger ? first : second;
      net::exposure bound = co_await peer.expose(kept.slice(0, 64), mr::usage::write_dst);
      co_await other.release();  // of which the device would say that a window is bound to it
      co_await bound.revoke();
      co_await kept.release();
    }
    co_await peer.close();
  };
  run(serve, close_behind);
}

loose_task lend_loosely(net::connection& peer, mr::buffer memory) {
  const net::exposure lent = co_await peer.expose(std::move(memory), mr::usage::write_dst);
}

// On Soft-RoCE a binding waits until nothing else is under way: its request names the window all that time.
TEST_F(simulated_rdma, a_binding_whose_frame_goes_before_the_device_has_it_is_not_made) {
  open({.like_rxe = true});
  int exchanged = 0;
  const auto serve = [&](net::connection& peer) -> task<> {
    while (auto message = co_await peer.recv()) ++exchanged;
    co_await peer.close();
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    for (int turns = 0; turns < 40; ++turns) {
      auto memory = co_await home->pool().allocate(64);
      const auto lend_for_a_while = [&]() -> task<> {
        const loose_task lending = lend_loosely(peer, std::move(memory));
        lending.start(*executor::current());
        while (below->windows() == 0) co_await yield();
        for (int i = 0; i < turns; ++i) co_await yield();
        while (!lending.at_rest()) co_await yield();
      };
      below->stall(client_port, 1ms);
      co_await when_all(send(peer, 64), lend_for_a_while(), send(peer, 64));
    }
    co_await send(peer, 64);
    co_await peer.close();
  };
  run(serve, ask);
  EXPECT_EQ(exchanged, 81);
}

// The window's memory goes with the frame.
TEST_F(simulated_rdma, an_exposure_that_is_destroyed_while_a_worker_makes_its_window_waits_for_that) {
  test::held_workers workers;
  executor_options_.workers = &workers;
  const auto ask = [&](net::connection& peer) -> task<> {
    auto memory = co_await home->pool().allocate(64);
    {
      const loose_task lending = lend_loosely(peer, std::move(memory));
      workers.hold_next_until_waited_for();
      lending.start(*executor::current());
      while (!workers.hold_it() || !lending.at_rest()) co_await yield();
      EXPECT_EQ(below->windows(), 0U);
    }
    EXPECT_FALSE(workers.hold_it());
    EXPECT_EQ(below->windows(), 0U);
    co_await peer.close();
  };
  run(close_behind, ask);
}

loose_task register_loosely(net::device& device, std::span<std::byte> memory) {
  const auto region = co_await device.register_memory(memory, {.usage = mr::usage::write_src});
}

TEST_F(simulated_rdma, a_registration_that_is_destroyed_while_a_worker_is_at_it_waits_for_that) {
  test::held_workers workers;
  executor_options_.workers = &workers;
  run([&]() -> task<> {
    std::vector<std::byte> memory(100);
    const loose_task registering = register_loosely(*home, memory);
    workers.hold_next_until_waited_for();
    registering.start(*executor::current());
    while (!workers.hold_it() || !registering.at_rest()) co_await yield();
  });
  EXPECT_FALSE(workers.hold_it());
}

template <class Operation>
loose_task succeed_or_fail(Operation operation) {
  static_cast<void>(co_await as_result(std::move(operation)));
}

// Sets up a connection, and destroys the frame of one end once it rests and `is_time()`, then calls `after()`. True if
// it had ended before.
template <class IsTime, class After>
task<bool> destroy_set_up(net::device& home, const net::connection_options& usual, bool of_client, IsTime& is_time,
                          const After& after) {
  net::listener from = co_await home.listen(address);
  const auto accept = [&]() -> task<> {
    auto request = co_await from.next();
    static_cast<void>(co_await request->accept(usual));
  };
  const auto connect = [&]() -> task<> { static_cast<void>(co_await home.connect(address, usual)); };
  const auto other = [&]() -> task<> {
    auto trying = of_client ? accept() : connect();
    static_cast<void>(co_await as_result(std::move(trying)));
  };
  bool ended = false;
  const auto meet = [&](scope& tasks) -> task<> {
    tasks.spawn(other());
    {
      const loose_task victim = succeed_or_fail(of_client ? connect() : accept());
      victim.start(*executor::current());
      while (!(is_time() && victim.at_rest()) && !victim.ended()) co_await yield();
      ended = victim.ended();
    }
    after();
    tasks.request_stop();
  };
  co_await with_scope(on_failure::stop_siblings, meet);
  co_return ended;
}

// What takes a worker: the completion queue, the queue pair, its states, an RNIC's rdma_connect(3), shared receives.
TEST_F(simulated_rdma, a_set_up_that_is_destroyed_while_a_worker_is_at_any_job_leaves_nothing) {
  const net::connection_options options = usual();
  for (const rdma_traits& like : {rdma_traits(), rnic()}) {
    for (const bool of_client : {true, false}) {
      bool ended = false;
      for (std::size_t number = 0; !ended; ++number) {
        open(like);
        test::held_workers workers(number);
        executor_options_.workers = &workers;
        const auto is_time = [&] { return workers.hold_it(); };
        const auto let_go = [&] { workers.let_go(); };
        run([&]() -> task<> { ended = co_await destroy_set_up(*home, options, of_client, is_time, let_go); });
      }
    }
  }
}

// Also before a step of it that is a task of its own has begun.
TEST_F(simulated_rdma, a_set_up_that_is_destroyed_at_any_turn_leaves_nothing) {
  const net::connection_options options = usual();
  std::size_t all_turns = 0;  // of single set-ups the world's dice decide
  for (const rdma_traits& like : {rdma_traits(), rnic()}) {
    for (const bool of_client : {true, false}) {
      std::size_t turns = 0;
      for (bool ended = false; !ended; ++turns) {
        open(like);
        auto is_time = [left = turns]() mutable { return left == 0 || --left == 0; };
        run([&]() -> task<> { ended = co_await destroy_set_up(*home, options, of_client, is_time, [] {}); });
      }
      all_turns += turns;
    }
  }
  EXPECT_GT(all_turns, 40U);
}

// InfiniBand's standard has it, and a peer that is not weft has told nothing.
TEST_F(simulated_rdma, immediate_data_goes_to_peers_that_are_not_weft_and_comes_from_them) {
  unsigned received = 0;
  net::connection_options options = foreign();
  options.receive_depth = 4;
  const auto serve = [&](net::connection& peer) -> task<> {
    const auto lent = co_await lend_buffer(peer);
    co_await tell(peer, lent.remote());
    for (; received < 40; ++received) {
      const auto message = co_await peer.recv_or_throw();
      EXPECT_EQ(message.immediate, received);
      EXPECT_EQ(message.size(), 0u);
      EXPECT_EQ(lent.memory().bytes()[received], static_cast<std::byte>(received + 1));
    }
    co_await send(peer, 1);
    EXPECT_FALSE(co_await peer.recv());
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    EXPECT_FALSE(peer.capabilities().native);
    EXPECT_TRUE(peer.capabilities().write_immediate);
    EXPECT_FALSE(peer.capabilities().atomics);
    const auto there = co_await hear(peer);
    for (std::uint32_t i = 0; i < 40; ++i) {  // more than there are receives
      auto note = co_await test::filled_with(home->pool(), 1, static_cast<std::byte>(i + 1));
      co_await peer.write(std::move(note), there.slice(i, 1), {.immediate = i});
    }
    static_cast<void>(co_await peer.recv_or_throw());
    co_await peer.close();
  };
  run(serve, ask, options);
  EXPECT_EQ(received, 40u);
}

TEST_F(simulated_rdma, weft_peers_stay_connected_where_packets_without_payload_are_lost) {
  open({.loses_empty_packets = true});
  const auto ask = [](net::connection& peer) -> task<> {
    co_await sleep_for(10 * dead_peer_after);
    co_await peer.close();
  };
  run(close_behind, ask);
}

// What this process has been warned of.
std::vector<std::string> warnings_in(const test::report_list& all) {
  std::vector<std::string> found;
  for (const auto& each : all.take()) {
    if (each.kind == report_kind::warning) found.push_back(each.line);
  }
  return found;
}

class foreign_peers : public simulated_rdma {
 protected:
  /// Connects until it succeeds, and runs `script(client, server)`: both take the other for a peer that is not weft.
  template <class Script>
  void between(Script script) {
    run([&]() -> task<> {
      const net::connection_options options = foreign();
      net::listener from = co_await home->listen(address);
      event served;
      std::optional<net::connection> server;
      const auto serving = [&]() -> task<> {
        while (!server) {
          auto request = co_await from.next();
          auto made = co_await as_result(request->accept(options));
          if (made) server = *std::move(made);
        }
        served.set();
      };
      const auto both = [&](scope& tasks) -> task<> {
        tasks.spawn(serving());
        net::connection_options own = options;
        own.source = source;
        std::optional<net::connection> client;
        while (!client) {
          auto made = co_await as_result(home->connect(address, own));
          if (made) client = *std::move(made);
        }
        co_await served.wait();
        co_await script(*client, *server);
        client->abort();
        server->abort();
      };
      co_await with_scope(on_failure::stop_siblings, both);
    });
  }

  task<> pass_a_word(net::connection& from, net::connection& to) {
    co_await send(from, 8);
    const auto came = co_await to.recv_or_throw();
    EXPECT_EQ(came.size(), 8u);
  }
};

// Such a request, when it is lost, breaks its queue pair: nothing that the peer does could save the connection.
TEST_F(foreign_peers, stay_connected_where_packets_without_payload_are_lost_and_it_is_said_that_nobody_asks_for_them) {
  open({.loses_empty_packets = true});
  source = "127.0.0.1:0";  // another port for each attempt
  const test::report_list reports;
  const auto script = [&](net::connection& client, net::connection& server) -> task<> {
    co_await pass_a_word(client, server);
    co_await sleep_for(10 * dead_peer_after);
    co_await pass_a_word(client, server);
    co_await pass_a_word(server, client);
  };
  between(script);
  const auto said = warnings_in(reports);
  EXPECT_EQ(said.size(), 1u) << "both ends are of one host";
  for (const std::string& each : said)
    EXPECT_NE(each.find("between sim0 and 127.0.0.1 drops packets without payload"), std::string::npos) << each;
}

TEST_F(foreign_peers, that_vanish_are_noticed_where_packets_without_payload_arrive) {
  const test::report_list reports;
  const auto script = [&](net::connection& client, net::connection& server) -> task<> {
    co_await pass_a_word(client, server);
    co_await sleep_for(10 * dead_peer_after);
    co_await pass_a_word(server, client);
    below->cut(client_port);
    EXPECT_EQ(co_await test::code_of(server.recv()), errc::peer_vanished);
  };
  between(script);
  EXPECT_TRUE(warnings_in(reports).empty());
}

// A server that has changed its mind leaves requests unanswered, whatever the network is like.
TEST_F(foreign_peers, that_leave_what_they_have_accepted_say_nothing_of_the_network) {
  open({.leaves_at_once = true});
  const test::report_list reports;
  run([&]() -> task<> {
    const net::connection_options options = foreign();
    net::listener from = co_await home->listen(address);
    const auto serving = [&]() -> task<> {
      while (auto request = co_await from.next()) static_cast<void>(co_await as_result(request->accept(options)));
    };
    co_await with_scope(on_failure::stop_siblings, [&](scope& all) -> task<> {
      all.spawn(serving());
      for (int i = 0; i < 8; ++i) static_cast<void>(co_await as_result(home->connect(address, options)));
      from.close();
    });
  });
  EXPECT_EQ(warnings_in(reports), std::vector<std::string>());
}

// The descriptor of a completion channel is readable for good once the device has gone, and receives that connections
// are to share may stay for as long as their user likes.
TEST_F(simulated_rdma, a_device_that_has_gone_lets_its_executor_sleep) {
  for (int round = 0; round < 8; ++round) {  // some let go of what their users have made
    open({});
    run([&]() -> task<> {
      const net::shared_receives kept = co_await home->share_receives({.depth = 4});
      co_await sleep_for(1ms);
      below->remove();
      co_await sleep_for(1ms);
      const executor& running = *executor::current();
      const std::uint64_t turns = running.statistics().turns;
      co_await sleep_for(10s);
      EXPECT_LT(running.statistics().turns - turns, 1000u);
    });
  }
}

class simulated_lending : public simulated_rdma {
 protected:
  /// What it says when it exposes a buffer of the device for a moment.
  static task<std::error_code> expose_at(net::device& device, net::connection& peer) {
    auto memory = co_await device.pool().allocate(64);
    auto lent = co_await as_result(peer.expose(std::move(memory), mr::usage::write_dst));
    if (!lent) co_return lent.error().code();
    static_cast<void>(co_await lent->revoke());
    co_return std::error_code();
  }
  std::error_code expose(window_kind kind, bool allow_shared_windows) {
    open({.windows = kind}, {.allow_shared_windows = allow_shared_windows});
    std::error_code failure;
    const auto serve = [&](net::connection& peer) -> task<> {
      failure = co_await expose_at(*home, peer);
      co_await peer.close();
    };
    run(serve, close_behind);
    return failure;
  }
};

TEST_F(simulated_lending, is_to_one_peer_where_there_are_windows_for_that_and_to_all_where_the_user_allows_it) {
  for (const bool allows_all : {false, true}) {
    EXPECT_EQ(expose(window_kind::none, allows_all), errc::not_supported);
    EXPECT_EQ(expose(window_kind::type_1, allows_all), allows_all ? std::error_code() : errc::not_supported);
    EXPECT_EQ(expose(window_kind::type_2a, allows_all), std::error_code());
  }
}

// Whose owner copies for its peer through memory that it lends it, or says each time that it has none to lend.
TEST_F(simulated_lending, of_room_for_copies_is_refused_as_often_as_it_is_asked_for_and_the_connection_goes_on) {
  open({.windows = window_kind::none});
  const auto serve = [](net::connection& peer) -> task<> {
    EXPECT_EQ((co_await peer.recv_or_throw()).payload.size(), 64u);
    co_await close_behind(peer);
  };
  const auto ask = [&](net::connection& peer) -> task<> {
    const mr::remote_place behind_owner{.fabric = mr::place_behind_owner, .address = 0, .key = 1};
    const mr::remote_region there({&behind_owner, 1}, 64, mr::usage::write_dst);
    auto memory = co_await home->pool().allocate(64);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(co_await test::code_of(peer.write(memory, there)), errc::no_memory);
    co_await peer.send(memory);
    co_await peer.close();
  };
  net::connection_options options = usual();
  options.device_memory = true;
  run(serve, ask, options);
}

TEST_F(simulated_lending, of_room_for_copies_is_answered_or_the_connection_ends_whichever_call_fails) {
  net::connection_options options = usual();
  options.device_memory = true;
  source = "127.0.0.1:0";  // another port for each attempt
  const auto serve = [](net::connection_request& request, const net::connection_options& how) -> task<> {
    auto peer = co_await as_result(request.accept(how));  // the call may be one of its last ones
    if (peer) co_await serve_until_the_end(*peer);
  };
  bool has_failed = true;
  for (std::uint64_t call = 1; has_failed; ++call) {
    open({.windows = window_kind::none});
    const auto ask = [&](net::connection& peer) -> task<> {
      const mr::remote_place behind_owner{.fabric = mr::place_behind_owner, .address = 0, .key = 1};
      const mr::remote_region there({&behind_owner, 1}, 64, mr::usage::write_dst);
      auto memory = co_await home->pool().allocate(64);
      place.fail_call(place.calls() + call);
      EXPECT_NE(co_await test::code_of(with_timeout(1h, peer.write(memory, there))), errc::timed_out) << call;
      has_failed = place.has_failed();
      place.fail_call(0);
      static_cast<void>(co_await as_result(peer.close()));
    };
    run(serve, ask, options);
    run([]() -> task<> { co_await sleep_for(10s); });  // until all has arrived that is still on its way
  }
}

TEST_F(simulated_lending, is_allowed_by_each_device_for_itself) {
  open({.windows = window_kind::type_1}, {.allow_shared_windows = true});
  const net::device_options options{.pool = {.huge_pages = false, .system_calls = &place}};
  std::optional other = net::device::open(net::verbs::open_transport(rdma::device_name, *below), options);
  const auto serving = [&](net::listener& from) -> task<> {
    auto peer = co_await from.accept();
    EXPECT_EQ(co_await expose_at(*home, *peer), std::error_code());
    co_await peer->close();
  };
  const auto asking = [&]() -> task<> {
    auto peer = co_await other->connect(address, {.source = source});
    EXPECT_EQ(co_await expose_at(*other, peer), errc::not_supported);
    EXPECT_FALSE(co_await peer.recv());
    co_await peer.close();
  };
  run([&]() -> task<> {
    net::listener from = co_await home->listen(address);
    co_await when_all(serving(from), asking());
  });
  other.reset();
}

}  // namespace
}  // namespace weft::sim
