// SPDX-License-Identifier: Apache-2.0
// Streams over a connection and over plain TCP: the same promises.
#include <weft/net/stream.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <random>

#include "kit/attempt.hpp"
#include "net/support.hpp"

namespace weft::test {
namespace {

using content = std::vector<std::byte>;

std::byte byte_at(std::size_t position) { return static_cast<std::byte>((position * 2654435761u) >> 13); }

content bytes_from(std::size_t position, std::size_t count) {
  content made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = byte_at(position + i);
  return made;
}

struct ends {
  net::stream a;
  net::stream b;
};

// Streams to a listener.
class streaming : public net_test {
 protected:
  using net_test::net_test;

  static task<net::stream> accept(net::stream_listener& listener, net::connection_options options) {
    auto peer = co_await listener.accept(options);
    co_return *std::move(peer);
  }
  task<ends> connect_to(net::stream_listener& listener, net::connection_options options = net::stream_options()) {
    auto both = co_await when_all(net::stream::connect(device(), std::string(listener.address()), options),
                                  accept(listener, options));
    ends made{std::move(std::get<0>(both)), std::move(std::get<1>(both))};
    co_return made;
  }
};

class stream_test : public streaming, public testing::WithParamInterface<const char*> {
 protected:
  [[nodiscard]] std::string scheme() const { return std::string(GetParam()) + "://"; }
  [[nodiscard]] bool is_plain() const { return scheme() == "tcp://"; }

  task<net::stream_listener> listen() { return net::stream_listener::listen(device(), scheme() + "127.0.0.1:0"); }
  task<ends> connect(net::connection_options options = net::stream_options()) {
    auto listener = co_await listen();
    co_return co_await connect_to(listener, options);
  }

  /// Runs `script(a, b)` on two streams that are connected.
  void between(const test_script<net::stream&, net::stream&>& script,
               net::connection_options options = net::stream_options()) {
    run([&]() -> task<> {
      auto both = co_await connect(options);
      co_await script(both.a, both.b);
    });
  }
};

INSTANTIATE_TEST_SUITE_P(over, stream_test, testing::Values("iwarp", "tcp"),
                         [](const auto& item) { return std::string(item.param); });

#define TEST_P_STREAMS(suite, name, ...)                                                           \
  TEST_P_SCRIPT(suite, name, ([[maybe_unused]] net::stream & a, [[maybe_unused]] net::stream & b), \
                between(WEFT_SCRIPT __VA_OPT__(, ) __VA_ARGS__))

task<mr::buffer> buffer_with(mr::pool& pool, std::span<const std::byte> bytes) {
  auto memory = co_await pool.allocate(bytes.size());
  std::ranges::copy(bytes, memory.data());
  co_return memory;
}

// Writes `total` bytes of the pattern in pieces drawn from a seed, by every way there is, and ends the direction.
task<> write_in_pieces(net::stream& to, mr::pool& pool, std::size_t total, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](std::size_t most) { return static_cast<std::size_t>(random() % most) + 1; };
  for (std::size_t done = 0; done < total;) {
    const std::size_t size = std::min(draw(random() % 4 == 0 ? 200'000 : 3000), total - done);
    const content piece = bytes_from(done, size);
    const std::span<const std::byte> bytes(piece);
    switch (random() % 5) {
      case 0:
        done += co_await to.write_some(bytes);
        break;
      case 1: {
        const std::size_t cut = draw(size);
        const std::array<std::span<const std::byte>, 3> parts{bytes.first(cut), {}, bytes.subspan(cut)};
        done += co_await to.write_some(parts);
        break;
      }
      case 2:
        co_await to.write(bytes);
        done += size;
        break;
      case 3: {
        auto memory = co_await buffer_with(pool, bytes);
        co_await to.write(std::move(memory));
        done += size;
        break;
      }
      default: {
        auto memory = co_await buffer_with(pool, bytes);
        done += co_await to.write_some(memory.slice());
      }
    }
  }
  co_await to.shutdown_send();
}

// Reads to the end, in places drawn from a seed; yields how many bytes of the pattern came.
task<std::size_t> read_in_pieces(net::stream& from, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  content room(70'000);
  const std::span<std::byte> places(room);
  for (std::size_t done = 0;;) {
    const std::size_t size = static_cast<std::size_t>(random() % (random() % 4 == 0 ? room.size() : 900)) + 1;
    std::size_t count = 0;
    bool same = true;
    const auto check = [&](std::span<const std::byte> bytes) {
      for (std::size_t i = 0; i < bytes.size(); ++i) same = same && bytes[i] == byte_at(done + i);
    };
    if (const auto way = random() % 3; way == 0) {
      count = co_await from.read_some(places.first(size));
      check(places.first(count));
    } else if (way == 1) {
      const std::size_t cut = random() % size;
      const std::array<std::span<std::byte>, 3> parts{places.first(cut), {}, places.subspan(cut, size - cut)};
      count = co_await from.read_some(parts);
      check(places.first(count));
    } else {
      const auto got = co_await from.read_bytes();
      count = got.bytes().size();
      check(got.bytes());
    }
    EXPECT_TRUE(same) << "behind " << done << " bytes, seed " << seed;
    if (count == 0 || !same) co_return done;
    done += count;
  }
}

TEST_P(stream_test, brings_every_byte_in_order_whatever_the_pieces_and_then_the_end) {
  constexpr std::size_t total = 400'000;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const auto script = [&](net::stream& a, net::stream& b) -> task<> {
      const auto done =
          co_await when_all(write_in_pieces(a, pool(), total, seed), write_in_pieces(b, pool(), total / 2, seed + 100),
                            read_in_pieces(b, seed + 200), read_in_pieces(a, seed + 300));
      EXPECT_EQ(std::get<2>(done), total);
      EXPECT_EQ(std::get<3>(done), total / 2);
      co_await a.close();
      co_await b.close();
    };
    between(script);
  }
}

TEST_P_STREAMS(stream_test, messages_of_one_byte_do_as_well, {.receive_size = 1, .receive_depth = 2}) {
  const auto done = co_await when_all(write_in_pieces(a, pool(), 3000, 1), read_in_pieces(b, 2));
  EXPECT_EQ(std::get<1>(done), 3000u);
}

TEST_P_STREAMS(stream_test, any_number_of_empty_places_before_the_first_byte_do_not_count) {
  const content sent = bytes_from(0, 100);
  content got(sent.size());
  std::array<std::span<const std::byte>, 2 * net::readable_ranges::max_ranges> parts{};
  std::array<std::span<std::byte>, 2 * net::writable_ranges::max_ranges> places{};
  parts.back() = sent;
  places.back() = got;
  EXPECT_EQ(co_await a.write_some(parts), sent.size());
  for (std::size_t done = 0; done < sent.size(); places.back() = std::span(got).subspan(done)) {
    const std::size_t some = co_await b.read_some(places);
    if (some == 0) break;
    done += some;
  }
  EXPECT_EQ(got, sent);
}

TEST_P_STREAMS(stream_test, one_direction_ends_and_the_other_goes_on) {
  const content question = bytes_from(0, 10'000);
  const content answer = bytes_from(7, 20'000);
  co_await a.write(question);
  co_await a.shutdown_send();
  co_await a.shutdown_send();  // says so once
  EXPECT_EQ(co_await code_of(a.write_some(question)), errc::closed);

  content got(question.size());
  co_await b.read(got);
  EXPECT_EQ(got, question);
  EXPECT_EQ(co_await b.read_some(got), 0u);
  EXPECT_EQ(co_await b.read_some(got), 0u);  // and stays at the end
  EXPECT_TRUE((co_await b.read_bytes()).empty());
  co_await b.write(answer);
  co_await b.close();

  got.resize(answer.size());
  co_await a.read(got);
  EXPECT_EQ(got, answer);
  EXPECT_EQ(co_await code_of(a.read(got)), errc::peer_closed);
}

TEST_P_STREAMS(stream_test, the_peers_close_is_the_end_behind_what_it_wrote) {
  const content words = bytes_from(0, 5000);
  co_await a.write(words);
  a.close();
  EXPECT_FALSE(a.is_open());
  EXPECT_EQ(co_await code_of(a.write_some(words)), errc::closed);
  content got(words.size());
  EXPECT_EQ(co_await code_of(a.read_some(got)), errc::closed);
  co_await b.read(got);
  EXPECT_EQ(got, words);
  EXPECT_EQ(co_await b.read_some(got), 0u);
  co_await a.close();  // again: waits for the first
}

// Bytes that come and are not read must not cost those that were written.
TEST_P_STREAMS(stream_test, closes_behind_what_was_written_although_the_peer_says_more_than_is_read,
               {.close_timeout = 30s}) {
  constexpr std::size_t much = 8 << 20;
  const content words = bytes_from(0, much);
  const content chatter = bytes_from(3, 1000);
  const auto answer = [&]() -> task<> {
    co_await a.write(words);
    co_await a.close();
  };
  std::size_t got = 0;
  const auto ask = [&]() -> task<> {
    co_await b.write(chatter);
    for (int i = 0; i < 10; ++i) co_await settle();
    content room(100'000);
    for (;;) {
      const std::size_t count = co_await b.read_some(room);
      if (count == 0) break;
      if (got == 0) co_await b.write(chatter);
      got += count;
    }
    co_await b.close();
  };
  co_await when_all(answer(), ask());
  EXPECT_EQ(got, much);
}

TEST_P_STREAMS(stream_test, an_end_of_the_writing_beside_a_write_is_refused_and_loses_nothing) {
  constexpr std::size_t much = 16 << 20;
  const content words = bytes_from(0, much);
  std::size_t got = 0;
  const auto end = [&]() -> task<> {
    co_await settle();
    EXPECT_EQ(co_await code_of(a.shutdown_send()), errc::busy);
    content room(100'000);
    while (got < much) got += co_await b.read_some(room);
  };
  co_await when_all(a.write(words), end());
  co_await a.shutdown_send();
  content room(1);
  EXPECT_EQ(co_await b.read_some(room), 0u);
}

TEST_P_STREAMS(stream_test, can_be_aborted_while_it_closes, {.close_timeout = 1h}) {
  const content words = bytes_from(0, 8'000'000);
  const auto end = [&]() -> task<> {
    co_await settle();
    a.close();
    co_await settle();
    a.abort();
    co_await a.close();
  };
  co_await when_all(as_result(a.write(words)), end());
  b.abort();
  EXPECT_FALSE(b.is_open());
  EXPECT_EQ(co_await code_of(b.write(words)), errc::closed);
}

TEST_P_STREAMS(stream_test, closes_behind_what_was_written_although_the_peer_has_ended_its_side_before,
               {.receive_size = 17 * 1024, .close_timeout = 60s}) {
  const content words = bytes_from(0, 100'000);
  content room(words.size());
  co_await a.shutdown_send();
  EXPECT_EQ(co_await b.read_some(room), 0u);
  std::size_t sent = 0;
  std::size_t got = 0;
  const auto fill = [&]() -> task<> {
    for (;;) sent += co_await b.write_some(words);
  };
  const auto body = [&](scope& tasks) -> task<> {
    attempt filling(tasks, fill());
    std::size_t before = 0;
    do {
      before = sent;
      co_await settle();
    } while (sent != before || sent == 0);
    filling.stop();
    co_await filling.end();
    attempt closing(tasks, b.close());
    for (int i = 0; i < 10; ++i) co_await settle();
    EXPECT_FALSE(is_plain() && closing.ended()) << "nobody has read " << sent << " bytes";
    while (const std::size_t some = co_await a.read_some(room)) got += some;
    co_await closing.end();
  };
  co_await with_scope(on_failure::stop_siblings, body);
  EXPECT_EQ(got, sent);
}

TEST_P_STREAMS(stream_test, no_room_and_no_bytes_are_no_end) {
  EXPECT_EQ(co_await a.write_some(std::span<const std::byte>()), 0u);
  co_await a.write(std::span<const std::byte>());
  co_await a.write(co_await pool().allocate(0));
  EXPECT_EQ(co_await b.read_some(std::span<std::byte>()), 0u);
  const content words = bytes_from(0, 5);
  co_await a.write(words);
  content got(5);
  co_await b.read(got);
  EXPECT_EQ(got, words);
}

TEST_P_STREAMS(stream_test, stopping_a_read_at_every_step_loses_no_byte) {
  std::size_t sent = 0;
  std::size_t got = 0;
  int stopped = 0;
  for (int steps = 0; steps < 60; ++steps) {
    content room(1 + static_cast<std::size_t>(steps) * 37);
    const auto read = [&]() -> task<> {
      try {
        const std::size_t count = co_await b.read_some(room);
        for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(room[i], byte_at(got + i));
        got += count;
      } catch (const error& why) {
        EXPECT_EQ(why.code(), errc::canceled);
        ++stopped;
      }
    };
    const auto stop = [&]() -> task<> {
      for (int i = 0; i < steps / 2; ++i) co_await yield();
      b.cancel();
    };
    const content words = bytes_from(sent, steps % 3 == 0 ? 0 : 700);
    sent += words.size();
    co_await when_all(read(), a.write(words), stop());
  }
  EXPECT_GT(stopped, 0);
  co_await a.shutdown_send();
  content rest(sent);
  while (const std::size_t count = co_await b.read_some(rest)) {
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(rest[i], byte_at(got + i));
    got += count;
  }
  EXPECT_EQ(got, sent);
}

TEST_P_STREAMS(stream_test, a_write_that_is_stopped_says_how_much_arrives) {
  std::size_t told = 0;
  int stopped = 0;
  // Nobody reads meanwhile, so that writes come to wait at every place where they can.
  for (int steps = 0; steps < 60; ++steps) {
    const content words = bytes_from(told, 100'000);
    const auto some = [&]() -> task<> {
      try {
        told += co_await a.write_some(words);
      } catch (const error& why) {
        EXPECT_EQ(why.code(), errc::canceled);
        ++stopped;
      }
    };
    const auto stop = [&]() -> task<> {
      for (int i = 0; i < steps % 20; ++i) co_await yield();
      a.cancel();
    };
    co_await when_all(some(), stop());
  }
  EXPECT_GT(stopped, 0);
  const auto done = co_await when_all(read_in_pieces(b, 5), a.shutdown_send());
  EXPECT_EQ(std::get<0>(done), told);
}

// Of which some has left already when it is canceled.
TEST_P_STREAMS(stream_test, a_write_of_everything_is_stopped_by_cancel_too) {
  const content words = bytes_from(0, 64 << 20);
  const auto body = [&](scope& tasks) -> task<> {
    for (int way = 0; way < 2; ++way) {
      auto memory = co_await pool().allocate(8 << 20);
      attempt writing(tasks, way == 0 ? a.write(words) : a.write(std::move(memory)));
      for (int i = 0; i < 10; ++i) co_await settle();
      EXPECT_FALSE(writing.ended());
      a.cancel();
      co_await with_timeout(30s, writing.end());
      EXPECT_EQ(writing.code(), errc::canceled);
    }
  };
  co_await with_scope(on_failure::stop_siblings, body);
  a.abort();
  b.abort();
}

TEST_P_STREAMS(stream_test, a_stop_of_the_task_is_as_good_as_cancel) {
  content room(10);
  EXPECT_EQ(co_await code_of(with_timeout(1us, b.read_some(room))), errc::timed_out);
  const content words = bytes_from(0, 10);
  co_await a.write(words);
  co_await b.read(room);
  EXPECT_EQ(room, words);
}

TEST_P_STREAMS(stream_test, a_peer_that_does_not_read_holds_the_writer_back) {
  std::size_t told = 0;
  const auto write_for_ever = [&]() -> task<> {
    const content words = bytes_from(0, 50'000);
    for (;;) told += co_await a.write_some(words);
  };
  EXPECT_EQ(co_await code_of(with_timeout(300ms, write_for_ever())), errc::timed_out);
  const std::size_t most = is_plain() ? std::size_t{64} << 20 : net::connection_options().receive_depth * 17u * 1024;
  EXPECT_LE(told, most);
  EXPECT_TRUE(b.is_open());
}

TEST_P_STREAMS(stream_test, a_second_read_or_write_at_a_time_is_refused) {
  content room(10);
  const auto both = [&]() -> task<> {
    EXPECT_EQ(co_await code_of(b.read_some(room)), errc::busy);
    EXPECT_EQ(co_await code_of(b.read_bytes()), errc::busy);
    co_await a.write(room);
  };
  co_await when_all(b.read(room), both());
}

TEST_P_TASK(stream_test, what_goes_on_when_the_stream_goes_ends) {
  auto both = co_await connect();
  const content words = bytes_from(0, 8'000'000);
  content room(10);
  const auto destroy = [&]() -> task<> {
    co_await settle();
    both.a = net::stream();
  };
  const auto gone = co_await when_all(code_of(both.a.read_some(room)), code_of(both.a.write(words)), destroy());
  EXPECT_EQ(std::get<0>(gone), errc::closed);
  EXPECT_EQ(std::get<1>(gone), errc::closed);
  EXPECT_EQ(co_await code_of(both.a.close()), errc::closed);
  const auto nothing = [&]() -> task<> { co_await both.a.read(room); };
  EXPECT_EQ(co_await code_of(nothing()), errc::closed);
  // What begins only after the end finds that out.
  auto late = both.b.read_some(room);
  auto late_write = both.b.write(words);
  both.b = net::stream();
  EXPECT_EQ(co_await code_of(std::move(late)), errc::closed);
  EXPECT_EQ(co_await code_of(std::move(late_write)), errc::closed);
}

TEST_P_STREAMS(stream_test, the_peers_abort_is_an_error_and_no_end) {
  const content words = bytes_from(0, 100);
  content room(10);
  const auto abort = [&]() -> task<> {
    co_await settle();
    a.abort();
  };
  const auto both = co_await when_all(code_of(b.read_some(room)), abort());
  const std::error_code read = std::get<0>(both);
  EXPECT_TRUE(read && read != errc::closed && read != errc::canceled) << read.message();
  const auto write_on = [&]() -> task<> {
    for (;;) co_await b.write(words);
  };
  EXPECT_TRUE(co_await code_of(write_on()));
}

TEST_P_STREAMS(stream_test, that_an_exception_destroys_is_aborted_so_that_half_an_answer_does_not_look_whole) {
  const auto fail = [](net::stream mine) -> task<> {
    const content half = bytes_from(0, 100);
    co_await mine.write(half);
    throw std::runtime_error("the other half");
  };
  auto failing = fail(std::move(a));
  bool failed = false;
  try {
    co_await std::move(failing);
  } catch (const std::runtime_error&) {
    failed = true;
  }
  EXPECT_TRUE(failed);
  content room(1000);
  const auto read_all = [&]() -> task<> {
    while (co_await b.read_some(room) != 0) continue;
  };
  EXPECT_TRUE(co_await code_of(read_all()));
}

TEST_P_STREAMS(stream_test, closes_while_it_waits_to_write, {.receive_size = 1000, .close_timeout = 100ms}) {
  const content words = bytes_from(0, 8'000'000);
  const auto close = [&]() -> task<> {
    co_await settle();
    co_await a.close();
  };
  const auto both = co_await when_all(code_of(a.write(words)), close());
  EXPECT_EQ(std::get<0>(both), errc::closed);
  b.close();
}

TEST_P_TASK(stream_test, nobody_listening_and_a_wrong_address_are_clear_errors) {
  EXPECT_TRUE(contains(co_await failure_of(net::stream::connect(device(), scheme() + "127.0.0.1:1")), "refused"));
  EXPECT_TRUE(contains(co_await failure_of(net::stream::connect(device(), scheme() + "nonsense")), "nonsense"));
  const auto failure = co_await failure_of(net::stream::connect(device(), "gopher://127.0.0.1:1"));
  EXPECT_TRUE(contains(failure, "gopher") && failure->code() == errc::not_supported);
  EXPECT_TRUE(co_await failure_of(net::stream_listener::listen(device(), "gopher://127.0.0.1:1")));
}

TEST_P_TASK(stream_test, a_listener_that_closes_lets_who_waits_go) {
  auto listener = co_await listen();
  const auto close = [&]() -> task<> {
    co_await settle();
    listener.close();
  };
  const auto waited = co_await when_all(listener.next(), close());
  EXPECT_FALSE(std::get<0>(waited));
  EXPECT_FALSE(co_await listener.next());
  auto another = co_await listen();
  EXPECT_EQ(co_await code_of(with_timeout(1us, another.next())), errc::timed_out);
  const auto destroy = [&]() -> task<> {
    co_await settle();
    another = std::move(listener);
  };
  const auto waited_on = co_await when_all(another.next(), destroy());
  EXPECT_FALSE(std::get<0>(waited_on));
}

// ---- over a connection ----

class message_stream_test : public stream_test {};
INSTANTIATE_TEST_SUITE_P(over, message_stream_test, testing::Values("iwarp"));

TEST_P_STREAMS(message_stream_test, writes_registered_memory_without_a_copy,
               {.receive_size = 1000, .receive_depth = 2}) {
  const auto in_use = [&] { return pool().statistics().send.in_use_bytes; };
  const auto fill = bytes_from(0, 1000);
  auto memory = co_await buffer_with(pool(), fill);
  auto borrowed = co_await buffer_with(pool(), fill);
  for (int i = 0; i < 2; ++i) co_await a.write(fill);  // the peer's two receives are taken
  const std::size_t before = in_use();
  const auto look = [&]() -> task<> {
    co_await settle();
    EXPECT_EQ(in_use(), before);
    content room(1000);
    for (int i = 0; i < 4; ++i) {
      co_await b.read(room);
      EXPECT_EQ(room, fill);
    }
  };
  const auto write = [&]() -> task<> {
    co_await a.write(std::move(memory));
    EXPECT_EQ(co_await a.write_some(borrowed.slice()), 1000u);
  };
  co_await when_all(write(), look());
}

// Takes all that is left of a budget.
task<std::vector<mr::buffer>> use_up(mr::pool& pool, mr::budget which) {
  constexpr std::size_t bytes = std::size_t{16} << 10;
  constexpr std::size_t of_others = 16;  // more buffers than connections hold
  auto all = co_await pool.allocate_all(pool.max_buffers(bytes, which) - of_others, bytes, which);
  while (auto more = pool.try_allocate(bytes, which)) all.push_back(*std::move(more));
  co_return all;
}

TEST_P_TASK(message_stream_test, a_write_that_waits_for_memory_ends_with_the_stream) {
  open_device({.pool = {.max_bytes = std::size_t{8} << 20}});
  const std::vector<void (*)(net::stream&)> ways_to_end{
      [](net::stream& which) { which.close(); },
      [](net::stream& which) { which.abort(); },
      [](net::stream& which) { which = net::stream(); },
  };
  const content words = bytes_from(0, 10'000);
  for (const auto end : ways_to_end) {
    auto both = co_await connect();
    auto held = co_await use_up(pool(), mr::budget::send);
    const auto end_it = [&]() -> task<> {
      co_await settle();
      EXPECT_EQ(pool().statistics().send.waiting, 1u);
      end(both.a);
      EXPECT_EQ(pool().statistics().send.waiting, 0u);
      held.clear();
    };
    const auto ended = co_await when_all(code_of(both.a.write_some(words)), end_it());
    EXPECT_EQ(std::get<0>(ended), errc::closed);
  }
}

// After so many resumptions in a row a coroutine that was just called waits for its turn, and others come before it.
TEST_P_TASK(message_stream_test, a_write_that_is_broken_off_anywhere_ends_with_the_stream) {
  open_device({.pool = {.max_bytes = std::size_t{8} << 20}});
  const content words = bytes_from(0, 10'000);
  const auto nothing = []() -> task<> { co_return; };
  for (int calls = 2040; calls < 2050 && !HasFailure(); ++calls) {
    auto both = co_await connect();
    auto held = co_await use_up(pool(), mr::budget::send);
    const auto write = [&]() -> task<> {
      co_await yield();
      for (int i = 0; i < calls; ++i) co_await nothing();
      co_await both.a.write_some(words);
    };
    const auto end = [&]() -> task<> {
      co_await yield();
      both.a = net::stream();
      co_await settle();
      EXPECT_EQ(pool().statistics().send.waiting, 0u) << calls;
      held.clear();
    };
    const auto ended = co_await when_all(code_of(write()), end());
    EXPECT_EQ(std::get<0>(ended), errc::closed);
  }
}

TEST_P_TASK(message_stream_test, a_write_that_is_broken_off_anywhere_touches_no_connection_that_has_gone) {
  const content words = bytes_from(0, 100);
  const auto nothing = []() -> task<> { co_return; };
  for (int calls = 2040; calls < 2050 && !HasFailure(); ++calls) {
    auto both = co_await connect();
    both.b.abort();
    content room(1);
    EXPECT_TRUE(co_await code_of(both.a.read_some(room)));
    for (int i = 0; i < 10; ++i) co_await settle();  // the link has closed, so that nothing keeps the connection
    const auto write = [&]() -> task<> {
      co_await yield();
      for (int i = 0; i < calls; ++i) co_await nothing();
      co_await both.a.write_some(words);
    };
    const auto end = [&]() -> task<> {
      co_await yield();
      both.a = net::stream();
    };
    const auto ended = co_await when_all(code_of(write()), end());
    EXPECT_TRUE(std::get<0>(ended));
  }
}

TEST_P_TASK(message_stream_test, no_message_is_larger_than_the_pool_of_this_end_has_room_for) {
  auto wide = net::stream_options();
  wide.receive_size = std::size_t{64} << 10;
  auto listener = co_await listen();
  auto narrow = net::device::open("iwarp", {.pool = {.max_bytes = std::size_t{32} << 10}});
  auto both = co_await when_all(
      net::stream::connect(narrow, std::string(listener.address()), {.receive_size = 100, .receive_depth = 2}),
      accept(listener, wide));
  const content words = bytes_from(0, 40'000);
  EXPECT_GE(co_await std::get<0>(both).write_some(words), 1u);
}

TEST_P_STREAMS(message_stream_test, read_bytes_hands_out_what_was_received_and_what_is_left_of_it) {
  const auto words = bytes_from(0, 1000);
  co_await a.write(words);
  content head(10);
  co_await b.read(head);
  const std::size_t held = pool().statistics().receive.in_use_bytes;
  auto rest = co_await b.read_bytes();
  EXPECT_EQ(pool().statistics().receive.in_use_bytes, held);
  EXPECT_EQ(content(rest.bytes().begin(), rest.bytes().end()), bytes_from(10, 990));
  rest = net::received_bytes();
  EXPECT_LT(pool().statistics().receive.in_use_bytes, held);
}

// A peer that speaks messages, and not as a stream does.
class stream_and_messages_test : public net_test {
 protected:
  void against_a_connection(const test_script<net::stream&, net::connection&>& script) {
    run([&]() -> task<> {
      auto listener = co_await listen();
      auto both = co_await when_all(net::stream::connect(device(), std::string(listener.address())), accept(listener));
      co_await script(std::get<0>(both), std::get<1>(both));
    });
  }
};

#define TEST_F_AGAINST_CONNECTION(fixture, name)                                              \
  TEST_F_SCRIPT(fixture, name, (net::stream & ours, [[maybe_unused]] net::connection & peer), \
                against_a_connection(WEFT_SCRIPT))

TEST_F_AGAINST_CONNECTION(stream_and_messages_test, what_comes_behind_the_end_is_not_read_and_bounded_by_the_credits) {
  for (const std::size_t size : {3u, 0u}) co_await peer.send(co_await pool().allocate(size));
  const auto send_for_ever = [&]() -> task<> {
    for (;;) co_await peer.send(co_await pool().allocate(100));
  };
  EXPECT_EQ(co_await code_of(with_timeout(100ms, send_for_ever())), errc::timed_out);
  EXPECT_LE(peer.statistics().sends.posted, net::connection_options().receive_depth);
  content room(100);
  EXPECT_EQ(co_await ours.read_some(room), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(co_await ours.read_some(room), 0u);
}

TEST_F_AGAINST_CONNECTION(stream_and_messages_test, a_message_with_immediate_data_is_a_broken_protocol) {
  co_await peer.send(co_await pool().allocate(3), {.immediate = 7});
  content room(100);
  EXPECT_EQ(co_await code_of(ours.read_some(room)), errc::protocol_error);
  EXPECT_TRUE(co_await code_of(ours.read_some(room)));
  EXPECT_TRUE((co_await failure_of(peer.recv())).has_value());
}

// A peer that offers room for much. It takes nothing from its socket: what was posted stays on its way.
raw_client roomy() { return {.greeting = greeting_bytes(1000, 1 << 16)}; }

TEST_F_AGAINST_RAW(stream_and_messages_test, a_write_that_is_stopped_on_its_way_arrives_and_says_so, roomy()) {
  net::stream ours(std::move(peer));
  std::size_t told = 0;
  bool stopped = false;
  // Until one was stopped that had come so far as to wait for the socket.
  while (!stopped) {
    const content words = bytes_from(told, 300'000);
    bool over = false;
    bool asked = false;
    const auto write = [&]() -> task<> {
      try {
        told += co_await ours.write_some(words);
        stopped = asked;
      } catch (const error& why) {
        EXPECT_EQ(why.code(), errc::canceled);
      }
      over = true;
    };
    const auto stop = [&]() -> task<> {
      co_await settle();
      asked = !over;
      if (asked) ours.cancel();
    };
    co_await when_all(write(), stop());
  }
  const auto end = [&]() -> task<> {
    static_cast<void>(co_await code_of(ours.shutdown_send()));  // the peer may have seen enough by then
    ours.close();
  };
  const auto read = [&]() -> task<> {
    content got;
    content message;
    while (got.size() < told) {
      const bytes ulpdu = co_await raw.receive_fpdu();
      if (ulpdu.size() < net::iwarp::untagged_header::bytes) break;
      const auto front = std::span(ulpdu).first<net::iwarp::control_bytes>();
      message.insert(message.end(), ulpdu.begin() + net::iwarp::untagged_header::bytes, ulpdu.end());
      if (!net::iwarp::parse_control(front).last) continue;
      message.resize(message.size() - net::trailer::bytes);
      got.insert(got.end(), message.begin(), message.end());
      message.clear();
    }
    EXPECT_EQ(got.size(), told);
    EXPECT_TRUE(got == bytes_from(0, told));
    raw.close();
  };
  co_await when_all(end(), read());
}

// The messages before those that were stopped have left memory that may be used again, but the connection has ended.
TEST_F_AGAINST_RAW(stream_and_messages_test, a_write_of_borrowed_memory_that_is_stopped_on_its_way_fails, roomy()) {
  net::stream ours(std::move(peer));
  const auto memory = co_await pool().allocate(300'000);
  std::size_t told = 0;
  const auto write_for_ever = [&]() -> task<> {
    for (;;) told += co_await ours.write_some(memory.slice());
  };
  const auto stop = [&]() -> task<> {
    std::size_t before = 0;
    do {  // until the socket takes no more
      before = told;
      co_await settle();
    } while (told != before || told == 0);
    ours.cancel();
  };
  const auto both = co_await when_all(code_of(write_for_ever()), stop());
  EXPECT_EQ(std::get<0>(both), errc::canceled);
  EXPECT_TRUE(co_await code_of(ours.write_some(memory.slice())));
  raw.close();
}

TEST_F(stream_and_messages_test, a_stream_belongs_to_the_connections_executor) {
  net::stream kept;
  const auto script = [&](net::stream& ours, net::connection&) -> task<> {
    kept = std::move(ours);
    co_return;
  };
  against_a_connection(script);
  executor other;
  content room(1);
  const auto read = [&]() -> task<> { EXPECT_EQ(co_await code_of(kept.read_some(room)), errc::wrong_thread); };
  other.run(read());
}

// ---- idle peers

TEST_P_STREAMS(stream_test, whose_peer_is_silent_holds_no_memory_while_it_is_read) {
  const std::size_t before = pool().statistics().receive.in_use_bytes;
  const content said = bytes_from(0, 100);
  const auto listen_to_it = [&]() -> task<> {
    const net::received_bytes heard = co_await b.read_bytes();
    EXPECT_EQ(content(heard.bytes().begin(), heard.bytes().end()), said);
  };
  const auto speak_up = [&]() -> task<> {
    for (int turn = 0; turn < 20; ++turn) co_await yield();
    EXPECT_EQ(pool().statistics().receive.in_use_bytes, before);
    co_await a.write(said);
  };
  co_await when_all(listen_to_it(), speak_up());
}

// ---- other threads

// Knows on which thread descriptors are closed, and how often somebody looks after a peer that may not read; may have
// no descriptors left.
class watched_calls : public system_calls {
 public:
  int close(int fd) noexcept override {
    if (std::this_thread::get_id() != home_thread_) closed_elsewhere_ = true;
    ++closed_;
    return system_calls::close(fd);
  }
  int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept override {
    if (level == IPPROTO_TCP && name == TCP_INFO) ++looks_;
    return system_calls::getsockopt(fd, level, name, value, length);
  }
  int eventfd(unsigned initial, int flags) noexcept override {
    return no_descriptors_left_ ? -EMFILE : system_calls::eventfd(initial, flags);
  }

 protected:
  const std::thread::id home_thread_ = std::this_thread::get_id();
  std::atomic<bool> closed_elsewhere_{false};
  std::atomic<int> closed_{0};
  int looks_ = 0;
  bool no_descriptors_left_ = false;
};

class plain_stream : public watched_calls, public streaming {
 protected:
  plain_stream() : streaming(static_cast<watched_calls&>(*this)) {}

  /// With a timer that nobody waits for: a quarter of that after a write.
  [[nodiscard]] static net::connection_options patient() {
    net::connection_options chosen = net::stream_options();
    chosen.dead_peer_after = 800s;
    return chosen;
  }
  task<net::stream_listener> listen_plainly(net::listener_options how = {}) {
    return net::stream_listener::listen(device(), "tcp://127.0.0.1:0", how);
  }
  task<ends> connect_plain() {
    auto listener = co_await listen_plainly();
    co_return co_await connect_to(listener, patient());
  }
  /// Without a word of its own.
  static raw_peer plain_peer(const net::stream_listener& listener) {
    return raw_peer::connect(listener.address().substr(std::string_view("tcp://").size()));
  }
};

TEST_F_TASK(plain_stream, peers_that_come_to_a_listener_without_descriptors_are_not_left_to_wait) {
  auto listener = co_await listen_plainly();
  std::vector<raw_peer> peers;
  for (int i = 0; i < 4; ++i) peers.push_back(plain_peer(listener));
  std::optional<no_descriptors_left> none(std::in_place);
  const auto be_turned_away = [&]() -> task<> {
    for (raw_peer& each : peers) EXPECT_TRUE((co_await each.receive_rest()).empty());
    none.reset();
    static_cast<void>(co_await net::stream::connect(device(), std::string(listener.address())));
  };
  co_await when_all(be_turned_away(), accept(listener, net::stream_options()));
}

TEST_F_TASK(plain_stream, peers_that_come_to_a_full_listener_are_turned_away_until_a_stream_has_closed) {
  auto listener = co_await listen_plainly({.max_connections = 1});
  ends first = co_await connect_to(listener);
  const auto be_turned_away = [&]() -> task<net::stream> {
    raw_peer early = plain_peer(listener);
    EXPECT_TRUE((co_await early.receive_rest()).empty());
    co_await first.b.close();
    co_return co_await net::stream::connect(device(), std::string(listener.address()));
  };
  static_cast<void>(co_await when_all(be_turned_away(), accept(listener, net::stream_options())));
}

// Its peers would have to wait until they have no time left.
TEST_F_TASK(plain_stream, is_not_listened_for_by_whoever_could_turn_nobody_away) {
  no_descriptors_left_ = true;
  const auto failure = co_await failure_of(listen_plainly());
  no_descriptors_left_ = false;
  EXPECT_TRUE(failed_with(failure, std::error_code(EMFILE, std::system_category())));
  ends made = co_await connect_plain();
  made.a.abort();
  made.b.abort();
}

TEST_F_TASK(plain_stream, that_is_closed_while_a_read_waits_for_memory_says_so) {
  open_device({.pool = {.max_bytes = std::size_t{8} << 20}});
  auto both = co_await connect_plain();
  const auto held = co_await use_up(pool(), mr::budget::receive);
  const content words = bytes_from(0, 100);
  co_await both.b.write(words);
  const auto close = [&]() -> task<> {
    while (pool().statistics().receive.waiting == 0) co_await settle();
    both.a.close();
  };
  const auto closed = co_await when_all(code_of(both.a.read_bytes()), close());
  EXPECT_EQ(std::get<0>(closed), errc::closed);
}

// Each write arms a timer, which belongs to the executor.
TEST_F_TASK(plain_stream, destroyed_on_another_thread_while_its_timer_is_armed_ends_on_its_executor) {
  const content word = bytes_from(0, 1);
  ends gone = co_await connect_plain();
  ends kept = co_await connect_plain();
  co_await gone.a.write(std::span(word));
  co_await kept.a.write(std::span(word));
  const int closed_before = closed_;
  std::thread([stream = std::move(gone.a)] {}).join();
  content room(2);
  EXPECT_EQ(co_await gone.b.read_some(room), 1u);
  EXPECT_EQ(co_await gone.b.read_some(room), 0u) << "it has not ended";
  co_await gone.b.close();
  while (closed_ != closed_before + 2) co_await yield();
  EXPECT_FALSE(closed_elsewhere_);
  const int looks_before = looks_;
  jump(patient().dead_peer_after / 4);
  co_await settle();
  EXPECT_EQ(looks_, looks_before + 1) << "the one that is left has a timer";
}

// Linux drops what it has not sent yet where bytes come to a socket that is closed.
TEST_F_TASK(plain_stream, destroyed_on_another_thread_loses_nothing_that_was_written) {
  constexpr std::size_t much = 8 << 20;
  const content words = bytes_from(0, much);
  const content chatter = bytes_from(3, 1000);
  ends both = co_await connect_plain();
  const auto write_and_go = [&]() -> task<> {
    co_await both.a.write(words);
    std::thread([stream = std::move(both.a)] {}).join();
  };
  std::size_t got = 0;
  const auto read_on = [&]() -> task<> {
    content room(100'000);
    bool has_chattered = false;
    for (;;) {
      const std::size_t count = co_await both.b.read_some(room);
      if (count == 0) break;
      got += count;
      if (both.a.is_open() || std::exchange(has_chattered, true)) continue;
      co_await settle();
      co_await both.b.write(chatter);
    }
    co_await both.b.close();
  };
  co_await when_all(write_and_go(), read_on());
  EXPECT_EQ(got, much);
  EXPECT_FALSE(closed_elsewhere_);
}

// The kernel tells as much as the test wants of what the peer's machine has acknowledged.
class told_arrival : public system_calls {
 public:
  int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept override {
    const int result = system_calls::getsockopt(fd, level, name, value, length);
    // tcpi_bytes_acked, which linux/tcp.h has and the C library's header does not
    constexpr std::size_t place = 120;
    if (result < 0 || level != IPPROTO_TCP || name != TCP_INFO || !is_under_way_) return result;
    if (*length < place + sizeof acknowledged_) return result;
    static_cast<tcp_info*>(value)->tcpi_unacked = 1;
    std::memcpy(static_cast<std::byte*>(value) + place, &acknowledged_, sizeof acknowledged_);
    ++looks_;
    return result;
  }

 protected:
  bool is_under_way_ = false;
  std::uint64_t acknowledged_ = 0;
  int looks_ = 0;
};

class slow_arrival : public told_arrival, public streaming {
 protected:
  slow_arrival() : streaming(static_cast<told_arrival&>(*this)) {}
};

TEST_F_TASK(slow_arrival, is_waited_for_by_a_plain_stream_that_was_away_for_longer_than_its_close_may_stand_still) {
  net::connection_options how = net::stream_options();
  how.close_timeout = 400s;
  auto listener = co_await net::stream_listener::listen(device(), "tcp://127.0.0.1:0");
  ends both = co_await connect_to(listener, how);
  is_under_way_ = true;
  attempt closing(tasks, both.a.close());
  while (looks_ == 0) co_await yield();
  acknowledged_ = 1000;
  jump(500s);
  for (int i = 0; i < 5; ++i) co_await settle();
  EXPECT_FALSE(closing.ended());
  is_under_way_ = false;
  co_await closing.end();
  co_await both.b.close();
}

}  // namespace
}  // namespace weft::test
