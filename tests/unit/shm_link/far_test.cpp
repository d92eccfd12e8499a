// SPDX-License-Identifier: Apache-2.0
// Large payloads, which the receiver copies out of the sender's memory where the kernel lets it.
#include <weft/net/shm/peer_process.hpp>

#include <sys/uio.h>

#include "shm_link/support.hpp"

namespace weft::test {
namespace {

using mr::usage;

constexpr std::size_t large = 1 << 20;

/// Counts copies out of other processes, and forbids them.
class copying_kernel final : public system_calls {
 public:
  std::atomic<int> copies{0};
  std::atomic<int> refusal{0};

  ssize_t process_vm_readv(pid_t process, const iovec* local, std::size_t local_count, const iovec* remote,
                           std::size_t remote_count) noexcept override {
    ++copies;
    if (const int refused = refusal.load(); refused != 0) return refused;
    return system_calls::process_vm_readv(process, local, local_count, remote, remote_count);
  }
};

class far_payload : public with_calls<copying_kernel, shm_link_test> {
 protected:
  static constexpr net::connection_options wide{.receive_size = 2 * large, .receive_depth = 2};

  /// Sends and writes of many sizes arrive as they were.
  task<> expect_delivery(pair& both) {
    auto region = co_await device().domain().register_memory(std::vector<std::byte>(2 * large),
                                                             {.usage = usage::write_dst | usage::read_src});
    unsigned seed = 0;
    for (const std::size_t size :
         {std::size_t{128} << 10, (std::size_t{128} << 10) + 1, large - 1, large, large + 12345}) {
      for (int round = 0; round < 3; ++round) {
        auto source = co_await device().domain().register_memory(std::vector<std::byte>(size),
                                                                 {.usage = usage::send | usage::write_src});
        fill(source.bytes(), ++seed);
        const mr::slice parts[] = {source.slice(0, 1000), source.slice(1000, 70'001),
                                   source.slice(71'001, size - 71'001)};
        const auto send = [&]() -> task<> {
          co_await both.client.send(parts);
          co_await both.client.write(parts, region.remote().slice(5, size));
          co_await both.client.flush(region.remote().slice(5, size));
        };
        const auto receive = [&]() -> task<> {
          const auto got = co_await both.server.recv_or_throw();
          EXPECT_TRUE(got.size() == size && holds(got.bytes(), seed));
        };
        co_await when_all(send(), receive());
        EXPECT_TRUE(holds(region.bytes().subspan(5, size), seed));
        co_await source.release();
      }
    }
    co_await region.release();
  }
};

TEST_F_TASK(far_payload, arrives_as_it_was_and_in_its_place_among_others) {
  auto both = co_await connect_pair(wide);
  co_await expect_delivery(both);
  EXPECT_GT(calls.copies, 20);
}

TEST_F(far_payload, goes_through_the_ring_where_the_kernel_forbids_copies) {
  for (const int refusal : {-EPERM, -ENOSYS, -ESRCH}) {
    calls.refusal = refusal;
    calls.copies = 0;
    run([&]() -> task<> {
      auto both = co_await connect_pair(wide);
      co_await expect_delivery(both);
      EXPECT_EQ(calls.copies, 1);  // tried once, and not again
    });
  }
}

TEST_F_TASK(far_payload, that_may_be_copied_no_more_ends_the_connection_in_words) {
  auto both = co_await connect_pair(wide);
  co_await expect_delivery(both);
  calls.refusal = -EPERM;
  auto region = co_await device().domain().register_memory(std::vector<std::byte>(large),
                                                           {.usage = usage::write_dst | usage::write_src});
  EXPECT_TRUE((co_await failure_of(both.client.write(region.slice(), region.remote()))).has_value());
  EXPECT_TRUE(says(co_await failure_of(both.server.recv_or_throw()), "could be read, and can no more"));
}

TEST_F_TASK(far_payload, of_a_sender_that_breaks_off_is_no_message) {
  auto both = co_await connect_pair(wide);
  co_await expect_delivery(both);
  for (int i = 0; i < 4; ++i) {
    auto again = co_await connect_pair(wide);
    {
      auto first = co_await device().allocate(200'000);
      auto second = co_await device().allocate(200'000);
      const auto send = [&]() -> task<> {
        co_await again.client.send(std::move(first));
        for (int turns = 0; turns < i; ++turns) co_await yield();
        static_cast<void>(co_await failure_of(again.client.send(std::move(second))));
      };
      const auto cut = [&]() -> task<> {
        static_cast<void>(co_await again.server.recv_or_throw());
        again.client.abort();
        const auto failure = co_await failure_of(again.server.recv_or_throw());
        if (failure) {
          EXPECT_TRUE(failed_with(failure, errc::peer_vanished));
        }
      };
      co_await when_all(send(), cut());
    }
  }
}

// As for payloads in the ring: it is the owner who has cut it.
TEST_F_TASK(far_payload, into_a_file_that_has_become_shorter_is_an_access_out_of_bounds) {
  auto both = co_await connect_pair(wide);
  co_await expect_delivery(both);
  const descriptor file = new_memory(large, 0);
  const mr::backing_file whole{.descriptor = file.fd()};
  auto region = co_await device().domain().register_memory(mr::mapping::of_file(whole, large, calls),
                                                           {.usage = usage::write_dst});
  auto ours = co_await device().domain().register_memory(std::vector<std::byte>(large), {.usage = usage::write_src});
  EXPECT_EQ(::ftruncate(file.fd(), 4096), 0);
  static_cast<void>(co_await failure_of(both.client.write(ours.slice(), region.remote())));
  EXPECT_TRUE(failed_with(co_await failure_of(both.client.recv_or_throw()), errc::remote_access));
}

// ---- peers that break the rules

class hostile_far_payload : public against_manual_end {
 protected:
  static void say_proof(manual_end& hand, const shm::proof_word& proof) {
    hand.say_whole({.kind = record_kind::prove}, std::as_bytes(std::span(&proof, 1)));
  }
  /// Has our end prove that it can read a word of the peer's memory.
  static task<> prove(manual_end& hand, const std::uint64_t& word) {
    say_proof(hand, {reinterpret_cast<std::uintptr_t>(&word), word});
    EXPECT_EQ((co_await next(hand, record_kind::proven)).flags, 0);
  }
  static void say_far(manual_end& hand, std::span<const shm::far_piece> pieces, std::uint64_t total) {
    hand.say_whole({.kind = record_kind::send, .flags = record::far, .total = total}, std::as_bytes(pieces));
  }
  static void say_far(manual_end& hand, std::span<const std::byte> payload) {
    const shm::far_piece piece{reinterpret_cast<std::uintptr_t>(payload.data()), payload.size()};
    say_far(hand, {&piece, 1}, piece.bytes);
  }
};
WEFT_ON_BOTH_ENDS(hostile_far_payload);

TEST_P(hostile_far_payload, that_nobody_asked_for) {
  const bytes payload(1000);
  expect_violation([&](manual_end& hand) { say_far(hand, payload); },
                   "a payload that is elsewhere, which nobody asked for");
}

TEST_P(hostile_far_payload, with_a_proof_that_is_none_is_declined) {
  const std::uint64_t word = 7;
  const auto at = reinterpret_cast<std::uintptr_t>(&word);
  for (const shm::proof_word& proof : {shm::proof_word{at, 8}, {0, 0}, {1, 0}, {UINT64_MAX - 3, 0}}) {
    against([&](manual_end& hand, net::connection&) -> task<> {
      say_proof(hand, proof);
      EXPECT_EQ((co_await next(hand, record_kind::proven)).flags, record::declined);
      const shm::far_piece piece{at, 8};
      say_far(hand, {&piece, 1}, 8);
      co_await hand.socket().receive_to_the_end();
    });
  }
  expect_violation([&](manual_end& hand) { hand.say({.kind = record_kind::prove}); }, "a malformed proof word");
}

TEST_P(hostile_far_payload, of_pieces_that_make_no_sense) {
  const std::uint64_t word = 7;
  const auto at = reinterpret_cast<std::uintptr_t>(&word);
  const auto expect_refusal = [&](std::vector<shm::far_piece> pieces, std::uint64_t total, std::string_view words) {
    expect_violation(
        [&](manual_end& hand) {
          say_proof(hand, {at, word});
          say_far(hand, pieces, total);
        },
        words);
  };
  expect_refusal({{at, 800}}, 900, "payload pieces do not add up to the message's length");
  expect_refusal({{at, 8}}, 7, "a length that none has");
  expect_refusal({{at, 1000}}, 999, "payload pieces do not add up to the message's length");
  expect_refusal({{at, 200}, {at, UINT64_MAX - 50}}, 149, "payload pieces do not add up to the message's length");
  expect_refusal({}, 0, "payload pieces do not add up to the message's length");
  expect_refusal(std::vector<shm::far_piece>(10, {at, 100}), 1000, "a malformed list of payload pieces");
  expect_refusal({{8, 1000}}, 1000, "a payload that is not in the memory of its sender");
}

TEST_P_BY_HAND(hostile_far_payload, whose_process_is_another_by_now_is_not_believed) {
  std::uint64_t word = 7;
  co_await prove(hand, word);
  word = 8;
  const bytes payload(1000);
  say_far(hand, payload);
  co_await expect_end(victim, errc::peer_vanished);
}

TEST_P_BY_HAND(hostile_far_payload, that_was_let_go_of_is_not_believed) {
  const std::uint64_t word = 7;
  co_await prove(hand, word);
  hand.own().payloads = shm::end_words::let_go;
  const bytes payload(1000);
  say_far(hand, payload);
  co_await expect_end(victim, errc::peer_vanished);
}

// The peer, a program by hand, may copy at any time until it has said that it has done so.
class sender_that_stops : public hostile_far_payload {
 protected:
  static constexpr std::size_t size = 200'000;

  /// Has the connection know that the peer can copy.
  task<> allow(manual_end& hand, net::connection& victim) {
    auto first = co_await filled(size, 'f');
    const auto serve = [&]() -> task<> {
      static_cast<void>(co_await next(hand, record_kind::prove));
      hand.say({.kind = record_kind::proven});
      co_await settle();
    };
    co_await when_all(victim.send(std::move(first)), serve());
  }
  static task<std::span<const std::byte>> far_memory(manual_end& hand) {
    for (;;) {
      bytes payload;
      const auto found = hand.take(&payload);
      if (!found) co_await yield();
      if (!found || (found->flags & record::far) == 0) continue;
      shm::far_piece piece;
      std::memcpy(&piece, payload.data(), sizeof piece);
      // Of this process, which is the peer's as well. NOLINTNEXTLINE(performance-no-int-to-ptr)
      co_return std::span(reinterpret_cast<const std::byte*>(piece.address), piece.bytes);
    }
  }
};
WEFT_ON_BOTH_ENDS(sender_that_stops);

TEST_P_BY_HAND(sender_that_stops, keeps_a_buffer_of_the_pool_until_the_peer_has_it) {
  co_await allow(hand, victim);
  std::optional<mr::buffer> memory(co_await filled(size, 'm'));
  const auto send = [&]() -> task<> {
    EXPECT_TRUE((co_await failure_of(with_timeout(1ms, victim.send(*memory)))).has_value());
    memory.reset();
  };
  const auto seen = co_await when_all(send(), far_memory(hand));
  const std::span<const std::byte> there = std::get<1>(seen);
  std::vector<mr::buffer> others;
  for (int i = 0; i < 8; ++i) others.push_back(co_await filled(size, 'o'));
  EXPECT_TRUE(is_all(there, std::byte{'m'}));
  hand.say({.kind = record_kind::copied});
  co_await settle();
}

TEST_P_BY_HAND(sender_that_stops, lets_go_of_memory_that_it_has_borrowed_when_it_has_said_so) {
  co_await allow(hand, victim);
  auto region = co_await device().domain().register_memory(std::vector<std::byte>(size), {.usage = usage::send});
  EXPECT_EQ(hand.other().payloads, shm::end_words::kept);
  EXPECT_TRUE((co_await failure_of(with_timeout(1ms, victim.send(region.slice())))).has_value());
  EXPECT_EQ(hand.other().payloads, shm::end_words::let_go);
  co_await region.release();
}

// Both arrive in one batch, so that the send has not completed yet when the answer is looked at.
TEST_P_BY_HAND(sender_that_stops, takes_an_answer_right_behind_the_word_that_a_payload_was_copied) {
  co_await allow(hand, victim);
  auto memory = co_await filled(size, 'm');
  auto target = co_await filled(8, 'r');
  const auto serve = [&]() -> task<> {
    static_cast<void>(co_await far_memory(hand));
    static_cast<void>(co_await next(hand, record_kind::read));
    hand.say_all({{{.kind = record_kind::copied}, {}}, {{.kind = record_kind::answer}, bytes(8, std::byte{'a'})}});
  };
  const mr::remote_slice there(1, 0, 8, usage::read_src);
  co_await when_all(victim.send(memory), victim.read(target, there), serve());
  EXPECT_EQ(target.bytes()[0], std::byte{'a'});
}

class sender_that_receives_nothing : public sender_that_stops {};
WEFT_ON_BOTH_ENDS(sender_that_receives_nothing);

TEST_P_BY_HAND(sender_that_receives_nothing, waits_for_the_word_that_a_payload_was_copied_for_so_long_and_no_longer,
               bytes(), {.receive_depth = 1}) {
  co_await allow(hand, victim);
  auto memory = co_await filled(size, 'm');
  const auto hold_up = [&]() -> task<> {
    static_cast<void>(co_await far_memory(hand));
    for (int i = 0; i < 100; ++i) hand.send(bytes(10));
    hand.say({.kind = record_kind::copied});
    co_await settle();
    jump(net::connection_options().overdue_after + 1s);
  };
  const auto both = co_await when_all(code_of(victim.send(memory)), hold_up());
  EXPECT_EQ(std::get<0>(both), errc::not_receiving);
}

// It goes on to receive what its peer sends until that has finished, too.
TEST_P_BY_HAND(hostile_far_payload, is_confirmed_by_an_end_that_has_finished) {
  const std::uint64_t word = 7;
  co_await prove(hand, word);
  const bytes payload(1000);
  const auto serve = [&]() -> task<> {
    static_cast<void>(co_await next(hand, record_kind::finished));
    say_far(hand, payload);
    static_cast<void>(co_await next(hand, record_kind::copied));
    hand.say({.kind = record_kind::finished});
  };
  co_await when_all(victim.close(), serve());
}

TEST_P(hostile_far_payload, that_was_never_sent_is_not_taken_for_copied) {
  for (const record_kind kind : {record_kind::copied, record_kind::proven}) {
    expect_violation([&](manual_end& hand) { hand.say({.kind = kind}); }, "an answer to nothing");
  }
}

}  // namespace
}  // namespace weft::test
