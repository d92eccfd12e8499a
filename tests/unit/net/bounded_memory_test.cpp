// SPDX-License-Identifier: Apache-2.0
// What a hostile peer can make this side hold: for every kind of stream a bound, measured in the bytes of the heap.
#include <weft/net/iwarp/executor_state.hpp>

#include "live_heap.hpp"
#include "net/support.hpp"
#include "stag_of.hpp"

namespace weft::test {
namespace {

using namespace net::iwarp;

constexpr std::size_t kib = 1024;
// Frames of coroutines, nodes of containers, words of errors.
constexpr std::size_t small_change = 16 * kib;

class bounded_memory : public net_test {
 protected:
  /// Says `what` over and over, for as long as somebody takes it; returns the bytes. `heap` looks on.
  static task<std::size_t> flood(raw_peer& raw, std::span<const std::byte> what, high_water& heap) {
    std::size_t sent = 0;
    for (int idle = 0; idle < 10;) {  // turns in which nothing was taken
      const std::size_t count = raw.send_what_fits(what.subspan(sent % what.size()));
      sent += count;
      idle = count == 0 ? idle + 1 : 0;
      co_await settle();
      heap.look();
    }
    co_return sent;
  }
};

// By a foreign peer, so that there are no credits that would stop it.
TEST_F_AGAINST_RAW(bounded_memory, messages_that_nobody_receives_are_held_in_one_staging_area, {.greeting = nothing}) {
  bytes messages;
  for (int i = 0; i < 8000; ++i) {
    const bytes one = raw.next_message_fpdu(4000);
    messages.insert(messages.end(), one.begin(), one.end());
  }
  high_water heap;
  EXPECT_LT(co_await flood(raw, messages, heap), messages.size()) << "it is stopped by TCP";
  EXPECT_LE(heap.added(), staging::capacity + small_change);
  peer.abort();
}

TEST_F_AGAINST_RAW(bounded_memory, responses_that_nobody_reads_are_made_one_batch_at_a_time) {
  const auto open = co_await peer.expose(co_await pool().allocate(std::size_t{16} << 20), mr::usage::read_src);
  high_water heap;
  for (int i = 0; i < 16; ++i) {
    co_await raw.read(test::stag_of(open.remote()), open.remote().address(), 16u << 20);
    co_await settle();
    heap.look();
  }
  EXPECT_LE(heap.added(), staging::capacity + sizeof(output_batch) + 128 * kib + small_change);
  peer.abort();
}

TEST_F_AGAINST_RAW(bounded_memory, control_messages_without_end_are_forgotten_at_once) {
  for (int i = 0; i < 10; ++i) co_await raw.send_message(nothing, credits_kind, greeted_depth);
  co_await settle();
  high_water heap;
  for (int i = 0; i < 3000; ++i) {
    co_await raw.send_message(nothing, credits_kind, greeted_depth);
    if (i % 50 == 0) co_await settle();
    heap.look();
  }
  EXPECT_LE(heap.added(), staging::capacity + sizeof(output_batch) + 128 * kib + small_change);
  for (int i = 0; i < 1000; ++i) co_await raw.send_message(nothing, credits_kind, greeted_depth);
  co_await raw.send_message(bytes(1), data_kind, greeted_depth);
  EXPECT_EQ((co_await peer.recv_or_throw()).size(), 1u) << "they have done no harm";
}

TEST_F_AGAINST_RAW(bounded_memory, a_peer_that_begins_frames_and_never_ends_them_holds_one_staging_area_while_it_does) {
  const bytes ulpdu(60'000);
  const bytes whole = raw.fpdu(ulpdu);
  high_water heap;
  for (std::size_t i = 0; i < 2000; ++i) {
    raw.send_now(std::span(whole).subspan(i, 1));
    co_await settle();
    heap.look();
  }
  EXPECT_LE(heap.added(), staging::capacity + small_change);
  peer.abort();
}

/// Those that had to give their places up have gone with all they held.
task<> until_the_evicted_have_gone(const net::device& at, std::size_t places) {
  while (at.statistics().half_open > places) co_await yield();
}

// Whoever has had its time has gone for another.
void send_if_it_can(raw_peer& from, std::span<const std::byte> what) {
  try {
    from.send_now(what);
  } catch (const error&) {
  }
}

TEST_F_TASK(bounded_memory, set_ups_that_never_end_cost_little_and_end_at_the_deadline) {
  constexpr std::size_t strangers = 500;
  const net::listener_options how{.max_half_open = 100};
  auto listener = co_await listen(how);
  std::vector<raw_peer> crowd;
  for (std::size_t i = 0; i < strangers; ++i) crowd.push_back(raw_peer::connect(listener.address()));
  const bytes request = request_frame();
  const auto waiting = [&]() -> task<> { static_cast<void>(co_await listener.next()); };
  const auto script = [&](scope& children) -> task<> {
    children.spawn(waiting());
    high_water heap;
    for (std::size_t i = 0; i < 30; ++i) {
      for (raw_peer& one : crowd) send_if_it_can(one, std::span(request).subspan(i, 1));
      co_await settle();
      heap.look();
    }
    EXPECT_LE(heap.added(), how.max_half_open * 8 * kib) << "they hold a frame each, and the others nothing";
    co_await until_the_evicted_have_gone(device(), how.max_half_open);
    high_water turns;
    for (std::size_t turn = 0; turn < strangers / how.max_half_open; ++turn) {
      let_set_ups_time_out();
      co_await settle();  // those who have waited in the kernel take the place of those who are dropped
      co_await until_the_evicted_have_gone(device(), how.max_half_open);
      turns.look();
    }
    EXPECT_LE(turns.added(), small_change) << "what the first held is used again";
    listener.close();
  };
  co_await with_scope(on_failure::stop_siblings, script);
}

TEST_F(bounded_memory, a_peer_that_promises_the_largest_receives_gets_nothing_for_it) {
  const auto heap_of = [&](std::uint16_t depth, std::uint32_t size) {
    std::size_t held = 0;
    run([&]() -> task<> {
      auto listener = co_await listen();
      raw_peer raw = raw_peer::connect(listener.address());
      const bytes promise = greeting_bytes(depth, size);
      const std::size_t before = live_heap_bytes();
      auto both = co_await when_all(raw.set_up(promise), accept(listener));
      held = live_heap_bytes() - before;
      std::get<1>(both).abort();
    });
    return held;
  };
  static_cast<void>(heap_of(1, 1));  // what a first connection brings with it
  const std::size_t small = heap_of(1, 1);
  const std::size_t large = heap_of(0xFFFF, net::greeting::largest_receive_size);
  EXPECT_LE(large, small + small_change);
}

}  // namespace
}  // namespace weft::test
