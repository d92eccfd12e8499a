// SPDX-License-Identifier: Apache-2.0
// Peers that write into the shared memory what no peer of ours would: their own connection ends, with the rule in its
// error, or goes on unharmed, and nothing else happens.
#include <weft/net/link/native_protocol.hpp>

#include "shm_link/support.hpp"

namespace weft::test {
namespace {

class hostile_ring : public against_manual_end {
 protected:
  using sayings = std::initializer_list<manual_end::saying>;

  /// What a read of ours of `size` bytes ends with, whose peer answers with `script(hand)`.
  template <class Script>
  task<std::optional<error>> read_answered_by(Script script, manual_end& hand, net::connection& victim,
                                              std::size_t size) {
    auto target = co_await filled(size, 'r');
    const mr::remote_slice source(0x1234, 0, size, mr::usage::read_src);
    const auto serve = [&]() -> task<> {
      static_cast<void>(co_await next(hand));
      script(hand);
    };
    const auto both = co_await when_all(failure_of(victim.read(target, source)), serve());
    co_return std::get<0>(both);
  }
  void expect_refused(sayings what, std::string_view words) {
    expect_violation([&](manual_end& hand) { hand.say_all(what); }, words);
  }
  /// Publishes so much, in which there is no more than the header of a record.
  static void say_first(manual_end& hand, const record& header, std::size_t length) {
    std::memcpy(hand.out().place(), &header, sizeof header);
    hand.out().advance(length);
    hand.publish();
  }
};
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
    expect_refused({{{.kind = static_cast<record_kind>(kind)}, {}}}, "a record of no known kind");
  }
}

TEST_P(hostile_ring, with_a_record_longer_than_what_is_published) {
  for (const std::uint32_t length : {33U, 64U, 1000U, 262'145U, 0x7fff'ffffU, 0xffff'ffe0U, 0xffff'ffffU}) {
    expect_violation([&](manual_end& hand) { hand.say(send_of(largest_message, length)); },
                     "a record that is longer than what there is");
  }
}

TEST_P(hostile_ring, with_a_record_that_claims_more_of_its_message_than_the_message_has) {
  expect_refused({{send_of(9, 0), ten}}, "a length that none has");
}

TEST_P(hostile_ring, with_a_message_or_a_write_larger_than_there_are) {
  for (const record_kind kind : {record_kind::send, record_kind::write, record_kind::read}) {
    for (const std::uint64_t total : {largest_message + 1, UINT64_MAX, UINT64_MAX - 31}) {
      expect_refused({{{.kind = kind, .total = total}, {}}}, "a length that none has");
    }
  }
}

TEST_P(hostile_ring, with_a_message_larger_than_its_receive) {
  expect_refused({{send_of(100'000, 0), {}}}, "a message that is larger than its receive");
}

TEST_P(hostile_ring, with_a_gap_that_does_not_reach_the_end_of_the_ring) {
  expect_refused({{{.kind = record_kind::skip}, {}}}, "a gap that is cut off");
}

TEST_P(hostile_ring, with_more_of_what_has_not_begun) {
  for (const bytes& piece : {bytes(), ten}) {
    expect_refused({{{.kind = record_kind::more}, piece}}, "more of a request than there is");
  }
}

TEST_P(hostile_ring, with_more_of_a_message_than_there_is) {
  expect_refused({{send_of(15, 0), ten}, {{.kind = record_kind::more}, ten}}, "more of a request than there is");
}

TEST_P(hostile_ring, with_a_request_inside_another) {
  for (const record_kind kind :
       {record_kind::send, record_kind::write, record_kind::read, record_kind::fetch_add, record_kind::compare_swap}) {
    expect_refused({{send_of(20, 0), ten}, {{.kind = kind, .total = 10}, ten}},
                   "a request at a place where there is none");
  }
}

TEST_P(hostile_ring, with_an_answer_or_a_value_to_nothing) {
  for (const record_kind kind : {record_kind::answer, record_kind::value}) {
    for (const bytes& content : {bytes(), bytes(8), bytes(10'000)}) {
      expect_refused({{{.kind = kind}, content}}, "an answer to nothing");
    }
  }
}

TEST_P(hostile_ring, with_an_end_inside_a_message) {
  expect_refused({{send_of(20, 0), ten}, {{.kind = record_kind::finished}, {}}}, "an end that is none");
}

TEST_P(hostile_ring, with_atomic_operations_without_their_operands) {
  for (const record_kind kind : {record_kind::fetch_add, record_kind::compare_swap}) {
    for (const std::size_t size : {0U, 8U, 15U, 17U, 1000U}) {
      expect_refused({{{.kind = kind}, bytes(size)}}, "an atomic operation without its operands");
    }
  }
}

TEST_P_BY_HAND(hostile_ring, goes_on_with_a_message_in_pieces_of_any_size_even_none) {
  const record more{.kind = record_kind::more};
  hand.say_all({{send_of(20, 0), {}}, {more, {}}, {more, ten}, {more, {}}, {more, ten}});
  co_await expect_message(victim, 20);
}

TEST_P_BY_HAND(hostile_ring, with_a_record_that_goes_on_beyond_the_end_of_the_ring, bytes(), {.receive_size = 16}) {
  while (hand.out().until_wrap() > 2 * line) {
    hand.send(ten);
    static_cast<void>(co_await victim.recv_or_throw());
  }
  say_first(hand, send_of(200, 200), 4 * line);
  co_await expect_end(victim, errc::protocol_error, "a record that is longer than what there is");
}

TEST_P_BY_HAND(hostile_ring, with_a_message_that_is_cut_off_where_a_task_asks_for_it) {
  say_first(hand, send_of(60, 60), line);
  const auto failure = co_await failure_of(victim.recv());
  EXPECT_TRUE(failed_with(failure, errc::protocol_error, "a record that is longer than what there is"));
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
  co_await expect_end(victim, errc::protocol_error);
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
      EXPECT_TRUE(says(co_await end_of(victim), "the peer's read position is beyond what was written"));
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
    EXPECT_TRUE(says(co_await end_of(victim), "the peer's read position is beyond what was written"));
  };
  co_await with_scope(on_failure::report, ask);
}

TEST_P_BY_HAND(hostile_ring, whose_attention_is_nonsense_or_changes_all_the_time) {
  for (const std::uint32_t nonsense : {0U, 1U, 2U, 7U, 0x8000'0000U, 0xffff'ffffU}) {
    hand.own().attention = nonsense;
    hand.other().attention = nonsense;
    hand.send(ten);
    co_await expect_message(victim);
    co_await send(victim);
    const auto said = hand.take();
    EXPECT_TRUE(said && said->kind == record_kind::send && said->total == 10);
    hand.release();
  }
}

// ---- answers to our requests

class hostile_answer : public hostile_ring {
 protected:
  /// A connection of ours reads `size` bytes, and its peer answers so.
  void expect_refusal(std::size_t size, sayings answers, std::string_view words) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      const auto answer = [&](manual_end& by) { by.say_all(answers); };
      const auto failure = co_await read_answered_by(answer, hand, victim, size);
      EXPECT_TRUE(failed_with(failure, errc::protocol_error, words));
      EXPECT_EQ(last_words(hand), words);
    });
  }
};
WEFT_ON_BOTH_ENDS(hostile_answer);

TEST_P(hostile_answer, that_is_longer_than_what_was_asked_for) {
  const auto words = "an answer that is too long";
  const record answer{.kind = record_kind::answer};
  expect_refusal(10, {{answer, bytes(11)}}, words);
  expect_refusal(10, {{answer, bytes(9)}, {answer, bytes(100'000)}}, words);
}

TEST_P(hostile_answer, of_the_wrong_kind) {
  expect_refusal(8, {{{.kind = record_kind::value}, bytes(8)}}, "an answer to nothing");
}

TEST_P_BY_HAND(hostile_answer, given_twice) {
  const record answer{.kind = record_kind::answer};
  const auto twice = [&](manual_end& by) { by.say_all({{answer, bytes(8)}, {answer, bytes(8)}}); };
  const auto failure = co_await read_answered_by(twice, hand, victim, 8);
  EXPECT_FALSE(failure.has_value());
  EXPECT_TRUE(says(co_await end_of(victim), "an answer to nothing"));
}

// ---- access to our memory

class hostile_access : public against_manual_end {
 protected:
  static constexpr std::size_t exposed_bytes = 1000;

  /// Our end refuses this, and its memory is as it was. The record has the difference to the right key, and the
  /// distance to the beginning of what is exposed.
  void expect_refusal(mr::usage uses, record what, const bytes& payload, std::string_view words = {}) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      auto memory = co_await filled(exposed_bytes, 'm');
      const auto open = co_await victim.expose(std::move(memory), uses);
      record asked = what;
      asked.key ^= stag_of(open.remote());
      asked.address += open.remote().address();
      asked.bytes = static_cast<std::uint32_t>(payload.size());
      hand.say(asked, payload);
      const auto failure = co_await end_of(victim);
      EXPECT_TRUE(failed_with(failure, errc::protocol_error, "the peer tried to"));
      EXPECT_TRUE(says(failure, words));
      EXPECT_NE(last_words(hand, shm::break_reason::access_refused), "none");
      EXPECT_TRUE(is_all(open.memory().bytes(), std::byte{'m'}));
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
    expect_refusal(open_wide, access_to(record_kind::write, 0, beyond, 10), ten);
    expect_refusal(open_wide, access_to(record_kind::write, 0, beyond, 10), {});
    expect_refusal(open_wide, access_to(record_kind::read, 0, beyond, 10), {});
  }
}

TEST_P(hostile_access, by_keys_that_are_none) {
  for (const std::uint32_t wrong : {1U, 0x100U, 0x8000'0000U, 0xffff'ffffU}) {
    for (const record_kind kind : {record_kind::write, record_kind::read}) {
      expect_refusal(open_wide, access_to(kind, wrong, 0, 10), {});
    }
  }
}

TEST_P(hostile_access, without_the_right_to_it) {
  using enum mr::usage;
  expect_refusal(read_src, access_to(record_kind::write, 0, 0, 10), ten, "write 10 bytes");
  expect_refusal(write_dst, access_to(record_kind::read, 0, 0, 10), {}, "read 10 bytes");
  expect_refusal(write_dst | read_src, access_to(record_kind::fetch_add, 0, 0, 8), bytes(16), "change 8 bytes");
}

TEST_P(hostile_access, to_words_that_are_not_aligned) {
  expect_refusal(open_wide, access_to(record_kind::compare_swap, 0, 4, 8), bytes(16), "change 8 bytes");
}

TEST_P(hostile_access, that_revokes_keys_which_are_not_its_own) {
  record message = send_of(10, 10);
  message.flags = record::invalidates;
  message.key = 0x100;
  expect_refusal(open_wide, message, ten, "invalidate");
}

TEST_P_BY_HAND(hostile_access, by_a_write_that_goes_on_after_its_memory_was_taken_away) {
  auto memory = co_await filled(exposed_bytes, 'm');
  auto open = co_await victim.expose(std::move(memory), mr::usage::write_dst);
  hand.say_whole(access_to(record_kind::write, stag_of(open.remote()), open.remote().address(), 20), ten);
  co_await settle();
  auto back = co_await open.revoke();
  std::fill(back.bytes().begin(), back.bytes().end(), std::byte{'n'});
  hand.say_whole({.kind = record_kind::more}, ten);
  co_await expect_end(victim, errc::connection_failed);
  EXPECT_TRUE(is_all(back.bytes(), std::byte{'n'}));
}

TEST_P_BY_HAND(hostile_access, by_more_reads_than_were_agreed_on) {
  auto memory = co_await filled(exposed_bytes, 'm');
  const auto open = co_await victim.expose(std::move(memory), mr::usage::read_src);
  for (int i = 0; i < 17; ++i) {
    hand.put(access_to(record_kind::read, stag_of(open.remote()), open.remote().address(), 10));
  }
  hand.publish();
  co_await expect_end(victim, errc::protocol_error, "more reads than were agreed on");
}

TEST_P_BY_HAND(hostile_access, that_reads_again_and_again_and_never_takes_an_answer) {
  auto memory = co_await filled(100'000, 'm');
  const auto open = co_await victim.expose(std::move(memory), mr::usage::read_src);
  for (int i = 0; i < 16; ++i) {
    hand.put(access_to(record_kind::read, stag_of(open.remote()), open.remote().address(), 100'000));
  }
  hand.send(ten);
  co_await expect_message(victim);  // comes in all the same
  co_await expect_idle();
}

// ---- ends

TEST_P(hostile_ring, whose_last_words_are_unprintable_or_longer_than_any) {
  for (const std::size_t length : {0U, 1U, 160U, 161U, 5000U, 100'000U}) {
    for (const int reason : {0, 1, 2, 3, 65'535}) {
      against([&](manual_end& hand, net::connection& victim) -> task<> {
        bytes words(length);
        for (std::size_t i = 0; i < length; ++i) words[i] = static_cast<std::byte>(i * 7);
        hand.say_whole({.kind = record_kind::broken,
                        .reason = static_cast<std::uint16_t>(reason),
                        .total = UINT64_MAX,
                        .address = UINT64_MAX,
                        .key = UINT32_MAX,
                        .number = UINT32_MAX},
                       words);
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
      const record answer{.kind = record_kind::answer};
      const record end{.kind = record_kind::broken, .reason = reason, .number = 77};
      const auto break_off = [&](manual_end& by) {
        by.say_all({{answer, bytes(5)}, {send_of(20, 0), ten}, {end, ten}, {answer, bytes(5)}});
      };
      const auto read = co_await read_answered_by(break_off, hand, victim, 10);
      EXPECT_TRUE(read);
      const auto failure = co_await end_of(victim);
      EXPECT_NE(failure.code(), errc::peer_closed) << failure.what();
    });
  }
}

TEST_P(hostile_ring, that_goes_on_after_its_end) {
  const auto rule = "a request at a place where there is none";
  for (const record_kind kind : {record_kind::send, record_kind::write, record_kind::read, record_kind::fetch_add}) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      const record end{.kind = record_kind::finished};  // allowed: it may still answer
      const auto go_on = [&](manual_end& by) { by.say_all({{end, {}}, {{.kind = kind}, bytes(16)}}); };
      EXPECT_TRUE(says(co_await read_answered_by(go_on, hand, victim, 10), rule));
    });
  }
}

TEST_P_BY_HAND(hostile_ring, that_ends_twice) {
  const record end{.kind = record_kind::finished};
  hand.say_all({{end, {}}, {end, {}}});
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
  co_await expect_message(victim);
  hand.socket().close();
  co_await expect_end(victim, errc::peer_vanished);
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
  co_await expect_message(victim);
}

TEST_P(hostile_ring, whose_socket_is_shut_down_without_a_word) {
  for (const int how : {SHUT_WR, SHUT_RDWR}) {
    against([&](manual_end& hand, net::connection& victim) -> task<> {
      hand.send(ten);
      ::shutdown(hand.socket().fd(), how);
      co_await expect_message(victim);  // was there before
      co_await expect_end(victim, errc::peer_vanished);
    });
  }
}

TEST_P_BY_HAND(hostile_ring, whose_socket_takes_no_wake_ups_hurts_only_itself) {
  ::shutdown(hand.socket().fd(), SHUT_RD);
  hand.own().attention = shm::end_words::asleep;
  co_await send(victim);
  hand.send(ten);
  co_await expect_message(victim);
}

TEST_P_BY_HAND(hostile_ring, that_is_never_emptied_holds_back_its_own_messages_only) {
  std::size_t sent = 0;
  std::optional<std::error_code> outcome;
  const auto fill = [&]() -> task<> {
    for (;; ++sent) co_await send(victim, 60'000);
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
    co_await expect_message(victim);
    co_await expect_idle();
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
      co_await send(victim);
      hand.drop_pages(with_words ? 0 : shm::channel::header_bytes);
      if (with_words) hand.wake();
      const auto sent = co_await code_of(send(victim));
      if (!with_words) {
        EXPECT_EQ(sent, std::error_code());
        hand.say({.kind = record_kind::broken});
      }
      co_await expect_end(victim, with_words ? errc::protocol_error : errc::peer_vanished);
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
    co_await expect_message(other_victim);
  }
  other_hand.claim_written(UINT64_MAX);
  co_await expect_end(other_victim, errc::protocol_error);
  other_victim.abort();
  co_await settle();
}

// ---- time of check, time of use

class hostile_changes : public against_manual_end {
 protected:
  /// Flips bits of the beginning of a ring, and back, until it goes.
  static std::jthread flipping_thread(std::byte* begin, std::uint64_t seed) {
    return std::jthread([begin, state = seed * 0x9e37'79b9'7f4a'7c15U + 1](const std::stop_token& enough) mutable {
      while (!enough.stop_requested()) {
        state = state * 6364136223846793005U + 1442695040888963407U;
        auto* const words = reinterpret_cast<std::uint32_t*>(begin);
        const std::atomic_ref<std::uint32_t> place(words[(state >> 33) % 2048]);
        const std::uint32_t former = place.load(std::memory_order_relaxed);
        place.store(former ^ (1U << (state >> 20) % 32), std::memory_order_relaxed);
        place.store(former, std::memory_order_relaxed);
      }
    });
  }
};
WEFT_ON_BOTH_ENDS(hostile_changes);

// Memory around what is exposed stays as it was, whatever a header says when it is looked at.
TEST_P(hostile_changes, of_headers_trailers_and_payloads_under_our_eyes_do_not_lead_out_of_bounds) {
  if (with_thread_sanitizer) GTEST_SKIP() << "these are races, on purpose";
  bytes memory(3000, std::byte{'m'});
  std::uint64_t received = 0;
  std::uint64_t received_with_trailers = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const bool is_native = seed % 2 != 0;  // its messages have trailers
    const auto script = [&](manual_end& hand, net::connection& victim) -> task<> {
      auto region = co_await device().register_memory(std::span(memory), {.usage = open_wide | mr::usage::bind_window});
      const auto open = co_await victim.expose(region.slice(1000, 1000), open_wide);
      const std::uint32_t key = stag_of(open.remote());
      std::optional<error> failure;
      const auto receive = [&]() -> task<> { failure = co_await end_of(victim); };
      const auto attack = [&]() -> task<> {
        const std::jthread changing = flipping_thread(hand.out().place(), seed);
        net::trailer::storage room;
        const net::trailer end{.kind = net::message_kind::data_with_immediate, .credits = 1, .immediate = 7};
        const auto trailer = end.pack(room);
        bytes content(100, std::byte{'c'});
        if (is_native) std::ranges::copy(trailer, std::span(content).last(trailer.size()).begin());
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
      (is_native ? received_with_trailers : received) += victim.statistics().messages_received;
    };
    const auto greeting = net::greeting().pack();
    against(script, is_native ? bytes(greeting.begin(), greeting.end()) : bytes());
    EXPECT_TRUE(is_all(std::span(memory).first(1000), std::byte{'m'}));
    EXPECT_TRUE(is_all(std::span(memory).last(1000), std::byte{'m'}));
  }
  EXPECT_GT(received, 0u);
  EXPECT_GT(received_with_trailers, 0u);
}

// ---- set-ups

using silent_shm_set_ups = shm_link_test;

// Each of them has its answer, and does not say that it is ready.
TEST_F_TASK(silent_shm_set_ups, give_their_places_in_accept_to_those_who_come) {
  auto listener = co_await device().listen("127.0.0.1:0", {.max_half_open = 4});
  const shm::unix_name name = name_of(listener);
  shm::frame hello = hello_frame();
  EXPECT_TRUE(hello.set_private_data(net::greeting().pack()));
  std::vector<raw_end> crowd;
  for (int i = 0; i < 20; ++i) {
    crowd.push_back(raw_end::connect(name));
    crowd.back().send(hello);
  }
  const net::connection_options patient{.set_up_timeout = std::chrono::minutes(10)};
  const std::string address(listener.address());
  const auto both = co_await when_all(device().connect(address, patient), listener.accept(patient));
  EXPECT_TRUE(std::get<1>(both).has_value());
}

}  // namespace
}  // namespace weft::test
