// SPDX-License-Identifier: Apache-2.0
// Peers that write into the shared memory what no peer of ours would: their own connection ends, with the rule in its
// error, or goes on unharmed, and nothing else happens.
#include <thread>

#include "shm_link/support.hpp"

namespace weft::test {
namespace {

class hostile_ring : public against_manual_end {};
WEFT_ON_BOTH_ENDS(hostile_ring);

constexpr std::size_t ring_bytes = std::size_t{256} << 10;
constexpr std::uint64_t largest_message = std::uint64_t{1} << 30;
constexpr std::size_t line = shm::cache_line;
const bytes ten(10, std::byte{'t'});

record send_of(std::uint64_t total, std::uint32_t piece) {
  return {.kind = record_kind::send, .bytes = piece, .total = total};
}

// ---- records

TEST_P(hostile_ring, with_a_record_of_no_known_kind) {
  for (const int kind : {0, 21, 100, 255}) {
    expect_violation([&](manual_end& hand) { hand.say({.kind = static_cast<record_kind>(kind)}); },
                     "a record of no known kind");
  }
}

TEST_P(hostile_ring, with_a_record_longer_than_what_is_published) {
  for (const std::uint32_t length : {33U, 64U, 1000U, 262'145U, 0x7fff'ffffU, 0xffff'ffe0U, 0xffff'ffffU}) {
    expect_violation([&](manual_end& hand) { hand.say(send_of(largest_message, length)); },
                     "a record that is longer than what there is");
  }
}

TEST_P(hostile_ring, with_a_record_that_claims_more_of_its_message_than_the_message_has) {
  expect_violation([](manual_end& hand) { hand.put_whole(send_of(9, 0), ten), hand.publish(); },
                   "a length that none has");
}

TEST_P(hostile_ring, with_a_message_or_a_write_larger_than_there_are) {
  for (const record_kind kind : {record_kind::send, record_kind::write, record_kind::read}) {
    for (const std::uint64_t total : {largest_message + 1, UINT64_MAX, UINT64_MAX - 31}) {
      expect_violation([&](manual_end& hand) { hand.say({.kind = kind, .total = total}); }, "a length that none has");
    }
  }
}

TEST_P(hostile_ring, with_a_message_larger_than_its_receive) {
  expect_violation([](manual_end& hand) { hand.say(send_of(100'000, 0)); },
                   "a message that is larger than its receive");
}

TEST_P(hostile_ring, with_a_gap_that_does_not_reach_the_end_of_the_ring) {
  expect_violation([](manual_end& hand) { hand.say({.kind = record_kind::skip}); }, "a gap that is cut off");
}

TEST_P(hostile_ring, with_more_of_what_has_not_begun) {
  for (const bytes& piece : {bytes(), ten}) {
    expect_violation([&](manual_end& hand) { hand.put_whole({.kind = record_kind::more}, piece), hand.publish(); },
                     "more of a request than there is");
  }
}

TEST_P(hostile_ring, with_more_of_a_message_than_there_is) {
  expect_violation(
      [](manual_end& hand) {
        hand.put_whole(send_of(15, 0), ten);
        hand.put_whole({.kind = record_kind::more}, ten);
        hand.publish();
      },
      "more of a request than there is");
}

TEST_P(hostile_ring, with_a_request_inside_another) {
  for (const record_kind kind :
       {record_kind::send, record_kind::write, record_kind::read, record_kind::fetch_add, record_kind::compare_swap}) {
    expect_violation(
        [&](manual_end& hand) {
          hand.put_whole(send_of(20, 0), ten);
          hand.put_whole({.kind = kind, .total = 10}, ten);
          hand.publish();
        },
        "a request at a place where there is none");
  }
}

TEST_P(hostile_ring, with_an_answer_or_a_value_to_nothing) {
  for (const record_kind kind : {record_kind::answer, record_kind::value}) {
    for (const bytes& content : {bytes(), bytes(8), bytes(10'000)}) {
      expect_violation([&](manual_end& hand) { hand.put_whole({.kind = kind}, content), hand.publish(); },
                       "an answer to nothing");
    }
  }
}

TEST_P(hostile_ring, with_an_end_inside_a_message) {
  expect_violation(
      [](manual_end& hand) {
        hand.put_whole(send_of(20, 0), ten);
        hand.put({.kind = record_kind::finished});
        hand.publish();
      },
      "an end that is none");
}

TEST_P(hostile_ring, with_atomic_operations_without_their_operands) {
  for (const record_kind kind : {record_kind::fetch_add, record_kind::compare_swap}) {
    for (const std::size_t size : {0U, 8U, 15U, 17U, 1000U}) {
      expect_violation([&](manual_end& hand) { hand.put_whole({.kind = kind}, bytes(size)), hand.publish(); },
                       "an atomic operation without its operands");
    }
  }
}

TEST_P_BY_HAND(hostile_ring, goes_on_with_a_message_in_pieces_of_any_size_even_none) {
  hand.put(send_of(20, 0));
  hand.put({.kind = record_kind::more});
  hand.put_whole({.kind = record_kind::more}, ten);
  hand.put({.kind = record_kind::more});
  hand.put_whole({.kind = record_kind::more}, ten);
  hand.publish();
  const auto arrived = co_await victim.recv_or_throw();
  EXPECT_EQ(arrived.size(), 20u);
}

TEST_P(hostile_ring, with_a_record_that_goes_on_beyond_the_end_of_the_ring) {
  against(
      [&](manual_end& hand, net::connection& victim) -> task<> {
        while (hand.out().until_wrap() > 2 * line) {
          hand.send(ten);
          static_cast<void>(co_await victim.recv_or_throw());
        }
        const record cut = send_of(200, 200);
        std::memcpy(hand.out().place(), &cut, sizeof cut);
        hand.out().advance(4 * line);
        hand.publish();
        const auto failure = co_await end_of(victim);
        EXPECT_EQ(failure.code(), errc::protocol_error);
        EXPECT_TRUE(contains(failure, "a record that is longer than what there is")) << failure.what();
      },
      {}, {.receive_size = 16});
}

// ---- what the words say

TEST_P(hostile_ring, that_has_published_more_than_there_is_room_for) {
  for (const std::uint64_t claim :
       {std::uint64_t{ring_bytes} + line, std::uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - line + 1}) {
    expect_violation([&](manual_end& hand) { hand.claim_written(claim); },
                     "the peer has published more than there is room for");
  }
}

TEST_P(hostile_ring, that_has_published_parts_of_a_line) {
  for (const std::uint64_t claim : {1U, 31U, 63U, 65U, 262'143U}) {
    expect_violation(
        [&](manual_end& hand) {
          const record message = send_of(ten.size(), static_cast<std::uint32_t>(ten.size()));
          std::memcpy(hand.out().place(), &message, sizeof message);
          hand.claim_written(claim);
        },
        "a record that is cut off");
  }
}

TEST_P_BY_HAND(hostile_ring, that_takes_back_what_it_has_published) {
  hand.send(ten);
  static_cast<void>(co_await victim.recv_or_throw());
  hand.claim_written(0);
  const auto failure = co_await end_of(victim);
  EXPECT_EQ(failure.code(), errc::protocol_error) << failure.what();
  EXPECT_EQ(last_words(hand), "the peer has published more than there is room for");
}

/// The end notices what its peer has taken when it writes itself.
class hostile_taker : public against_manual_end {
 protected:
  void expect_insane(std::uint64_t taken_before, std::uint64_t claim) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      // Gathered, because a small message of one piece has room without a look at the peer's position.
      const auto memory = co_await filled(10, 'x');
      const mr::slice parts[] = {memory.slice(0, 5), memory.slice(5, 5)};
      co_await victim.send(parts);
      hand.claim_taken(taken_before);
      co_await victim.send(parts);
      hand.claim_taken(claim);
      const auto sent = co_await failure_of(victim.send(parts));
      EXPECT_TRUE(failed_with(sent, errc::protocol_error));
      if (!sent) co_return;
      const auto failure = co_await end_of(victim);
      EXPECT_TRUE(contains(failure, "the peer's read position is beyond what was written")) << failure.what();
    });
  }
};
WEFT_ON_BOTH_ENDS(hostile_taker);

TEST_P(hostile_taker, of_what_was_not_published) {
  for (const std::uint64_t claim : {std::uint64_t{3 * line}, std::uint64_t{1} << 40, UINT64_MAX}) {
    expect_insane(0, claim);
  }
}

TEST_P(hostile_taker, that_gives_back_what_it_has_taken) { expect_insane(line, 0); }

TEST_P(hostile_taker, of_parts_of_a_line) {
  for (const std::uint64_t claim : {1U, 63U, 65U, 127U}) expect_insane(0, claim);
}

// It waits for answers then, and does not write.
TEST_P_BY_HAND(hostile_taker, of_what_was_not_there_is_noticed_while_reads_wait_for_their_turn) {
  const mr::remote_slice source(0x1234, 0, 10, mr::usage::read_src);
  const auto read = [&]() -> task<> {
    auto target = co_await filled(10, 'r');
    EXPECT_TRUE(failed_with(co_await failure_of(victim.read(target, source)), errc::protocol_error));
  };
  const auto ask = [&](scope& tasks) -> task<> {
    for (int i = 0; i < 17; ++i) tasks.spawn(read(), "a reader");
    co_await settle();
    hand.claim_taken(std::uint64_t{1} << 40);
    const auto failure = co_await end_of(victim);
    EXPECT_TRUE(contains(failure, "the peer's read position is beyond what was written")) << failure.what();
  };
  co_await with_scope(on_failure::report, ask);
}

TEST_P_BY_HAND(hostile_ring, whose_attention_is_nonsense_or_changes_all_the_time) {
  for (const std::uint32_t nonsense : {0U, 1U, 2U, 7U, 0x8000'0000U, 0xffff'ffffU}) {
    hand.own().attention = nonsense;
    hand.other().attention = nonsense;
    hand.send(ten);
    const auto arrived = co_await victim.recv_or_throw();
    EXPECT_EQ(arrived.size(), 10u);
    auto answer = co_await filled(10, 'x');
    co_await victim.send(std::move(answer));
    const auto said = hand.take();
    EXPECT_TRUE(said && said->kind == record_kind::send && said->total == 10);
    hand.release();
  }
}

// ---- answers to our requests

class hostile_answer : public against_manual_end {
 protected:
  /// A connection of ours reads `size` bytes, and its peer answers by `script(hand)`.
  template <class Script>
  void expect_refusal(std::size_t size, Script script, std::string_view words) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      auto target = co_await filled(size, 'r');
      const mr::remote_slice source(0x1234, 0, size, mr::usage::read_src);
      const auto serve = [&]() -> task<> {
        while (!hand.take()) co_await yield();
        script(hand);
      };
      const auto both = co_await when_all(failure_of(victim.read(target, source)), serve());
      const std::optional<error>& failure = std::get<0>(both);
      EXPECT_TRUE(failed_with(failure, errc::protocol_error, words));
      EXPECT_EQ(last_words(hand), words);
    });
  }
};
WEFT_ON_BOTH_ENDS(hostile_answer);

TEST_P(hostile_answer, that_is_longer_than_what_was_asked_for) {
  const auto words = "an answer that is too long";
  expect_refusal(
      10, [](manual_end& hand) { hand.put_whole({.kind = record_kind::answer}, bytes(11)), hand.publish(); }, words);
  expect_refusal(
      10,
      [](manual_end& hand) {
        hand.put_whole({.kind = record_kind::answer}, bytes(9));
        hand.put_whole({.kind = record_kind::answer}, bytes(100'000));
        hand.publish();
      },
      words);
}

TEST_P(hostile_answer, of_the_wrong_kind) {
  expect_refusal(
      8, [](manual_end& hand) { hand.put_whole({.kind = record_kind::value}, bytes(8)), hand.publish(); },
      "an answer to nothing");
}

TEST_P_BY_HAND(hostile_answer, given_twice) {
  auto target = co_await filled(8, 'r');
  const mr::remote_slice source(0x1234, 0, 8, mr::usage::read_src);
  const auto serve = [&]() -> task<> {
    while (!hand.take()) co_await yield();
    hand.put_whole({.kind = record_kind::answer}, bytes(8));
    hand.put_whole({.kind = record_kind::answer}, bytes(8));
    hand.publish();
  };
  const auto both = co_await when_all(code_of(victim.read(target, source)), serve());
  EXPECT_EQ(std::get<0>(both), std::error_code());
  const auto failure = co_await end_of(victim);
  EXPECT_TRUE(contains(failure, "an answer to nothing")) << failure.what();
}

// ---- access to our memory

class hostile_access : public against_manual_end {
 protected:
  static constexpr std::size_t exposed_bytes = 1000;

  /// Our end refuses what `script(hand, key, address)` asks for, and its memory is as it was.
  template <class Script>
  void expect_refusal(mr::usage uses, Script script, std::string_view words) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      auto memory = co_await filled(exposed_bytes, 'm');
      const auto open = co_await victim.expose(std::move(memory), uses);
      script(hand, stag_of(open.remote()), open.remote().address());
      hand.publish();
      const auto failure = co_await end_of(victim);
      EXPECT_EQ(failure.code(), errc::protocol_error) << failure.what();
      EXPECT_TRUE(contains(failure, "the peer tried to")) << failure.what();
      EXPECT_TRUE(contains(failure, words)) << failure.what();
      EXPECT_NE(last_words(hand, shm::break_reason::access_refused), "none");
      const auto all = open.memory().bytes();
      EXPECT_TRUE(std::ranges::all_of(all, [](std::byte one) { return one == std::byte{'m'}; }));
    });
  }
};
WEFT_ON_BOTH_ENDS(hostile_access);

constexpr mr::usage open_wide = mr::usage::write_dst | mr::usage::read_src | mr::usage::atomic_dst;

record access_to(record_kind kind, std::uint32_t key, std::uint64_t address, std::uint64_t total) {
  return {.kind = kind, .total = total, .address = address, .key = key};
}

TEST_P(hostile_access, outside_of_what_is_exposed) {
  for (const std::uint64_t beyond : {std::uint64_t{991}, std::uint64_t{1000}, std::uint64_t{1} << 40, UINT64_MAX - 4}) {
    const auto ask = [&](record_kind kind, const bytes& content) {
      expect_refusal(
          open_wide,
          [&](manual_end& hand, std::uint32_t key, std::uint64_t address) {
            hand.put_whole(access_to(kind, key, address + beyond, 10), content);
          },
          "");
    };
    ask(record_kind::write, ten);
    ask(record_kind::write, {});
    ask(record_kind::read, {});
  }
}

TEST_P(hostile_access, by_keys_that_are_none) {
  for (const std::uint32_t wrong : {1U, 0x100U, 0x8000'0000U, 0xffff'ffffU}) {
    for (const record_kind kind : {record_kind::write, record_kind::read}) {
      expect_refusal(
          open_wide,
          [&](manual_end& hand, std::uint32_t key, std::uint64_t address) {
            hand.put(access_to(kind, key ^ wrong, address, 10));
          },
          "");
    }
  }
}

TEST_P(hostile_access, without_the_right_to_it) {
  expect_refusal(
      mr::usage::read_src,
      [](manual_end& hand, std::uint32_t key, std::uint64_t address) {
        hand.put_whole(access_to(record_kind::write, key, address, 10), ten);
      },
      "write 10 bytes");
  expect_refusal(
      mr::usage::write_dst,
      [](manual_end& hand, std::uint32_t key, std::uint64_t address) {
        hand.put(access_to(record_kind::read, key, address, 10));
      },
      "read 10 bytes");
  expect_refusal(
      mr::usage::write_dst | mr::usage::read_src,
      [](manual_end& hand, std::uint32_t key, std::uint64_t address) {
        hand.put_whole(access_to(record_kind::fetch_add, key, address, 8), bytes(16));
      },
      "change 8 bytes");
}

TEST_P(hostile_access, to_words_that_are_not_aligned) {
  expect_refusal(
      open_wide,
      [](manual_end& hand, std::uint32_t key, std::uint64_t address) {
        hand.put_whole(access_to(record_kind::compare_swap, key, address + 4, 8), bytes(16));
      },
      "change 8 bytes");
}

TEST_P(hostile_access, that_revokes_keys_which_are_not_its_own) {
  expect_refusal(
      open_wide,
      [](manual_end& hand, std::uint32_t key, std::uint64_t) {
        record message = send_of(10, 10);
        message.flags = record::invalidates;
        message.key = key ^ 0x100;
        hand.put_whole(message, ten);
      },
      "invalidate");
}

TEST_P_BY_HAND(hostile_access, by_a_write_that_goes_on_after_its_memory_was_taken_away) {
  auto memory = co_await filled(exposed_bytes, 'm');
  auto open = co_await victim.expose(std::move(memory), mr::usage::write_dst);
  hand.put_whole(access_to(record_kind::write, stag_of(open.remote()), open.remote().address(), 20), ten);
  hand.publish();
  co_await settle();
  auto back = co_await open.revoke();
  std::fill(back.bytes().begin(), back.bytes().end(), std::byte{'n'});
  hand.put_whole({.kind = record_kind::more}, ten);
  hand.publish();
  const auto failure = co_await end_of(victim);
  EXPECT_EQ(failure.code(), errc::connection_failed) << failure.what();
  EXPECT_TRUE(std::ranges::all_of(back.bytes(), [](std::byte one) { return one == std::byte{'n'}; }));
}

TEST_P_BY_HAND(hostile_access, by_more_reads_than_were_agreed_on) {
  auto memory = co_await filled(exposed_bytes, 'm');
  const auto open = co_await victim.expose(std::move(memory), mr::usage::read_src);
  for (int i = 0; i < 17; ++i) {
    hand.put(access_to(record_kind::read, stag_of(open.remote()), open.remote().address(), 10));
  }
  hand.publish();
  const auto failure = co_await end_of(victim);
  EXPECT_EQ(failure.code(), errc::protocol_error) << failure.what();
  EXPECT_TRUE(contains(failure, "more reads than were agreed on")) << failure.what();
}

TEST_P_BY_HAND(hostile_access, that_reads_again_and_again_and_never_takes_an_answer) {
  auto memory = co_await filled(100'000, 'm');
  const auto open = co_await victim.expose(std::move(memory), mr::usage::read_src);
  for (int i = 0; i < 16; ++i) {
    hand.put(access_to(record_kind::read, stag_of(open.remote()), open.remote().address(), 100'000));
  }
  hand.send(ten);
  const auto arrived = co_await victim.recv_or_throw();  // comes in all the same
  EXPECT_EQ(arrived.size(), 10u);
  const std::uint64_t before = home().statistics().turns;
  co_await sleep_for(20ms);
  EXPECT_LT(home().statistics().turns, before + 20);
}

// ---- ends

TEST_P(hostile_ring, whose_last_words_are_unprintable_or_longer_than_any) {
  for (const std::size_t length : {0U, 1U, 160U, 161U, 5000U, 100'000U}) {
    for (const int reason : {0, 1, 2, 3, 65'535}) {
      against([&](manual_end& hand, net::connection& victim) -> task<> {
        bytes words(length);
        for (std::size_t i = 0; i < length; ++i) words[i] = static_cast<std::byte>(i * 7);
        hand.put_whole({.kind = record_kind::broken,
                        .reason = static_cast<std::uint16_t>(reason),
                        .total = UINT64_MAX,
                        .address = UINT64_MAX,
                        .key = UINT32_MAX,
                        .number = UINT32_MAX},
                       words);
        hand.publish();
        const auto failure = co_await end_of(victim);
        const auto expected = reason == 1   ? make_error_code(errc::remote_access)
                              : reason == 2 ? make_error_code(errc::connection_failed)
                                            : make_error_code(errc::peer_vanished);
        EXPECT_EQ(failure.code(), expected) << failure.what();
        const std::string_view said = failure.what();
        EXPECT_LT(said.size(), 600u);
        if (reason == 2 && length == 0) {
          EXPECT_TRUE(contains(failure, "the peer says that this end broke the rules"));
        }
        EXPECT_TRUE(std::ranges::all_of(said, [](char one) { return one >= ' ' && one <= '~'; })) << said;
      });
    }
  }
}

TEST_P(hostile_ring, that_breaks_off_in_the_middle_of_a_message_and_of_our_requests) {
  for (const std::uint16_t reason : {std::uint16_t{0}, std::uint16_t{1}, std::uint16_t{2}}) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      auto target = co_await filled(10, 'r');
      const mr::remote_slice source(0x1234, 0, 10, mr::usage::read_src);
      const auto serve = [&]() -> task<> {
        while (!hand.take()) co_await yield();
        hand.put_whole({.kind = record_kind::answer}, bytes(5));
        hand.put_whole(send_of(20, 0), ten);
        hand.put_whole({.kind = record_kind::broken, .reason = reason, .number = 77}, ten);
        hand.put_whole({.kind = record_kind::answer}, bytes(5));
        hand.publish();
      };
      const auto both = co_await when_all(failure_of(victim.read(target, source)), serve());
      EXPECT_TRUE(std::get<0>(both));
      const auto failure = co_await end_of(victim);
      EXPECT_NE(failure.code(), errc::peer_closed) << failure.what();
    });
  }
}

TEST_P(hostile_ring, that_goes_on_after_its_end) {
  const auto rule = "a request at a place where there is none";
  for (const record_kind kind : {record_kind::send, record_kind::write, record_kind::read, record_kind::fetch_add}) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      auto target = co_await filled(10, 'r');
      const mr::remote_slice source(0x1234, 0, 10, mr::usage::read_src);
      const auto serve = [&]() -> task<> {
        while (!hand.take()) co_await yield();
        hand.put({.kind = record_kind::finished});  // allowed: it may still answer
        hand.put_whole({.kind = kind}, bytes(16));
        hand.publish();
      };
      const auto both = co_await when_all(failure_of(victim.read(target, source)), serve());
      EXPECT_TRUE(contains(std::get<0>(both), rule)) << (std::get<0>(both) ? std::get<0>(both)->what() : "none");
    });
  }
}

TEST_P_BY_HAND(hostile_ring, that_ends_twice) {
  hand.put({.kind = record_kind::finished});
  hand.put({.kind = record_kind::finished});
  hand.publish();
  const auto failure = co_await end_of(victim);
  EXPECT_TRUE(failure.code() == errc::protocol_error || failure.code() == errc::peer_closed) << failure.what();
}

// ---- the socket

TEST_P_BY_HAND(hostile_ring, whose_socket_is_flooded_with_wake_ups_for_nothing) {
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 1000; ++i) static_cast<void>(::send(hand.socket().fd(), "w", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
    co_await settle();
  }
  const bytes large(100'000);
  static_cast<void>(::send(hand.socket().fd(), large.data(), large.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
  static_cast<void>(::send(hand.socket().fd(), large.data(), 0, MSG_DONTWAIT | MSG_NOSIGNAL));
  hand.send(ten);
  const auto arrived = co_await victim.recv_or_throw();
  EXPECT_EQ(arrived.size(), 10u);
  hand.socket().close();
  const auto failure = co_await end_of(victim);
  EXPECT_EQ(failure.code(), errc::peer_vanished) << failure.what();
}

TEST_P_BY_HAND(hostile_ring, that_sends_descriptors_leaves_no_more_than_one_of_them_open) {
  co_await settle();  // the listener has gone
  const descriptor file = new_memory(4096, 0);
  const footprint before = co_await settled_footprint();
  for (int round = 0; round < 200; ++round) {
    hand.socket().send(ten, std::vector<int>(3, file.fd()));
    co_await settle();
    EXPECT_LE(footprint().descriptors, before.descriptors + 1);  // that of an offer that may come
  }
  hand.send(ten);
  const auto arrived = co_await victim.recv_or_throw();
  EXPECT_EQ(arrived.size(), 10u);
}

TEST_P(hostile_ring, whose_socket_is_shut_down_without_a_word) {
  for (const int how : {SHUT_WR, SHUT_RDWR}) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      hand.send(ten);
      ::shutdown(hand.socket().fd(), how);
      const auto arrived = co_await victim.recv_or_throw();  // was there before
      EXPECT_EQ(arrived.size(), 10u);
      const auto failure = co_await end_of(victim);
      EXPECT_EQ(failure.code(), errc::peer_vanished) << failure.what();
    });
  }
}

TEST_P_BY_HAND(hostile_ring, whose_socket_takes_no_wake_ups_hurts_only_itself) {
  ::shutdown(hand.socket().fd(), SHUT_RD);
  hand.own().attention = shm::end_words::asleep;
  auto message = co_await filled(10, 'x');
  co_await victim.send(std::move(message));
  hand.send(ten);
  const auto arrived = co_await victim.recv_or_throw();
  EXPECT_EQ(arrived.size(), 10u);
}

TEST_P_BY_HAND(hostile_ring, that_is_never_emptied_holds_back_its_own_messages_only) {
  std::size_t sent = 0;
  std::optional<std::error_code> outcome;
  const auto fill = [&]() -> task<> {
    for (;; ++sent) {
      auto message = co_await filled(60'000, 'x');
      co_await victim.send(std::move(message));
    }
  };
  const auto attempt = [&]() -> task<> { outcome = co_await code_of(fill()); };
  const auto watch = [&]() -> task<> {
    for (std::size_t before = sent + 1; before != sent;) {
      before = sent;
      co_await settle();
    }
    EXPECT_GE(sent, 3u);
    EXPECT_FALSE(outcome);
    hand.send(ten);
    const auto arrived = co_await victim.recv_or_throw();
    EXPECT_EQ(arrived.size(), 10u);
    const std::uint64_t turns = home().statistics().turns;
    co_await sleep_for(20ms);
    EXPECT_LT(home().statistics().turns, turns + 20);
    victim.abort();
  };
  co_await when_all(attempt(), watch());
  EXPECT_TRUE(outcome && *outcome == errc::closed) << (outcome ? outcome->message() : "none");
}

TEST_P(hostile_ring, that_takes_the_pages_of_the_channel_away) {
  for (const bool with_words : {false, true}) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      hand.send(ten);
      static_cast<void>(co_await victim.recv_or_throw());
      auto first = co_await filled(10, 'x');
      co_await victim.send(std::move(first));
      hand.drop_pages(with_words ? 0 : shm::channel::header_bytes);
      if (with_words) hand.wake();
      auto second = co_await filled(10, 'x');
      const auto sent = co_await code_of(victim.send(std::move(second)));
      if (!with_words) {
        EXPECT_EQ(sent, std::error_code());
        hand.say({.kind = record_kind::broken});
      }
      const auto failure = co_await end_of(victim);
      EXPECT_EQ(failure.code(), with_words ? errc::protocol_error : errc::peer_vanished) << failure.what();
    });
  }
}

// Both draw from the same receives; there are fewer of them than messages.
TEST_P_TASK(hostile_ring, that_ends_while_it_waits_for_receives_of_others_leaves_these_to_them) {
  auto shared = co_await device().share_receives({.receive_size = 64, .depth = 4});
  const net::connection_options how{.profile = net::profile::interop, .receives = &shared};
  auto one = co_await connect_by_hand(accepts(), bytes(), how);
  auto other = co_await connect_by_hand(accepts(), bytes(), how);
  auto& [one_hand, one_victim] = one;
  auto& [other_hand, other_victim] = other;
  for (int i = 0; i < 20; ++i) {
    one_hand.send(ten);
    other_hand.send(ten);
  }
  co_await settle();
  one_hand.socket().close();
  one_victim.abort();
  co_await settle();
  for (int i = 0; i < 20; ++i) {
    const auto arrived = co_await other_victim.recv_or_throw();
    EXPECT_EQ(arrived.size(), 10u);
  }
  other_hand.claim_written(UINT64_MAX);
  const auto failure = co_await end_of(other_victim);
  EXPECT_EQ(failure.code(), errc::protocol_error) << failure.what();
  other_victim.abort();
  co_await settle();
}

// ---- time of check, time of use

class hostile_changes : public against_manual_end {
 protected:
  /// Flips bits of the beginning of a ring, and back, until it goes.
  class flipping_thread {
   public:
    flipping_thread(std::byte* begin, std::uint64_t seed)
        : thread_([this, begin, state = seed * 0x9e37'79b9'7f4a'7c15U + 1]() mutable {
            while (!done_.load(std::memory_order_relaxed)) {
              state = state * 6364136223846793005U + 1442695040888963407U;
              auto* const words = reinterpret_cast<std::uint32_t*>(begin);
              const std::atomic_ref<std::uint32_t> place(words[(state >> 33) % 2048]);
              const std::uint32_t former = place.load(std::memory_order_relaxed);
              place.store(former ^ (1U << (state >> 20) % 32), std::memory_order_relaxed);
              place.store(former, std::memory_order_relaxed);
            }
          }) {}
    flipping_thread(const flipping_thread&) = delete;
    flipping_thread& operator=(const flipping_thread&) = delete;
    ~flipping_thread() {
      done_ = true;
      thread_.join();
    }

   private:
    std::atomic<bool> done_{false};
    std::thread thread_;
  };
};
WEFT_ON_BOTH_ENDS(hostile_changes);

// Memory around what is exposed stays as it was, whatever a header says when it is looked at.
TEST_P(hostile_changes, of_headers_and_payloads_under_our_eyes_do_not_lead_out_of_bounds) {
  if (with_thread_sanitizer) GTEST_SKIP() << "these are races, on purpose";
  bytes memory(3000, std::byte{'m'});
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      auto region = co_await device().register_memory(std::span(memory), {.usage = open_wide | mr::usage::bind_window});
      const auto open = co_await victim.expose(region.slice(1000, 1000), open_wide);
      const std::uint32_t key = stag_of(open.remote());
      std::optional<error> failure;
      const auto receive = [&]() -> task<> { failure = co_await end_of(victim); };
      const auto attack = [&]() -> task<> {
        const flipping_thread changing(hand.out().place(), seed);
        const bytes content(100, std::byte{'c'});
        while (!failure && hand.out().until_wrap() > 8192) {
          for (int i = 0; i < 8; ++i) {
            hand.put_whole(send_of(100, 0), content);
            hand.put_whole(access_to(record_kind::write, key, open.remote().address() + 900, 100), content);
            hand.put_whole(access_to(record_kind::fetch_add, key, open.remote().address() + 992, 8), bytes(16));
          }
          hand.publish();
          while (hand.other().taken < hand.own().written && !failure) co_await yield();
        }
        hand.socket().close();
      };
      co_await when_all(attack(), receive());
      EXPECT_TRUE(failure);
    });
    const auto is_old = [](std::byte one) { return one == std::byte{'m'}; };
    EXPECT_TRUE(std::ranges::all_of(std::span(memory).first(1000), is_old));
    EXPECT_TRUE(std::ranges::all_of(std::span(memory).last(1000), is_old));
  }
}

// ---- set-ups

// Each of them has its answer, and does not say that it is ready.
TEST(silent_shm_set_ups, give_their_places_in_accept_to_those_who_come) {
  executor home;
  const auto body = [&]() -> task<> {
    auto device = net::device::open("shm");
    auto listener = co_await device.listen("127.0.0.1:0", {.max_half_open = 4});
    const std::string address(listener.address());
    const shm::unix_name name = shm::unix_name::of((co_await resolve(address, false)).front());
    shm::frame hello = hello_frame();
    EXPECT_TRUE(hello.set_private_data(net::greeting().pack()));
    std::vector<raw_end> crowd;
    for (int i = 0; i < 20; ++i) {
      crowd.push_back(raw_end::connect(name));
      crowd.back().send(hello);
    }
    const net::connection_options patient{.set_up_timeout = std::chrono::minutes(10)};
    const auto both = co_await when_all(device.connect(address, patient), listener.accept(patient));
    EXPECT_TRUE(std::get<1>(both).has_value());
  };
  home.run(body());
}

}  // namespace
}  // namespace weft::test
