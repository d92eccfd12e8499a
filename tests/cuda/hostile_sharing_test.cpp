// SPDX-License-Identifier: Apache-2.0
// Peers of this machine that break the rules about memory that they share: no copy touches what is closed, and each
// request has its answer, or ends the peer's own connection.
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/owner_message.hpp>

#include <map>
#include <random>

#include "cuda/sharing.hpp"
#include "cuda/stand_in_control.hpp"
#include "kit/piped_program.hpp"
#include "shm_link/support.hpp"

namespace weft::test {
namespace {

using mr::detail::owner_access;
using net::owner_message;
using verb = owner_message::verb;

constexpr std::size_t lent_bytes = std::size_t{1} << 20;
constexpr unsigned of_lender = 1;  // seeds
constexpr unsigned of_owner = 2;

std::vector<std::byte> content_of(unsigned seed, std::size_t bytes = lent_bytes) {
  std::vector<std::byte> made(bytes);
  fill_with(made, seed);
  return made;
}

/// A process whose memory the peer shares: a process does not open its own.
class lender {
 public:
  explicit lender(std::size_t bytes = lent_bytes) : bytes_(bytes) {
    program_.hear(std::as_writable_bytes(std::span(&shared_, 1)));
  }
  ~lender() { EXPECT_EQ(program_.end(), 0); }

  [[nodiscard]] const mr::device_share& shared() const noexcept { return shared_; }
  /// Its memory as it is now.
  [[nodiscard]] std::vector<std::byte> content() {
    program_.say('?');
    std::vector<std::byte> all(bytes_);
    program_.hear(all);
    return all;
  }

 private:
  std::size_t bytes_;
  piped_program program_{{SHARE_LENDER, std::to_string(bytes_)}};
  mr::device_share shared_;
};

/// A peer by hand that asks for copies.
class asking_end {
 public:
  explicit asking_end(manual_end& hand) : hand_(hand) {}

  void ask(const owner_message& what) {
    bytes message(owner_message::max_bytes);
    message.resize(what.pack(message));
    net::trailer::storage room;
    const auto end = net::trailer{.kind = net::message_kind::device_memory, .credits = 16}.pack(room);
    message.insert(message.end(), end.begin(), end.end());
    hand_.put_whole({.kind = record_kind::send, .total = message.size()}, message);
    hand_.out().publish();
    // Wakes nobody who is awake: what wakes lies in the socket for long, which has room for few.
    if (hand_.other().attention == shm::end_words::asleep) hand_.wake();
  }
  /// The next answer about the slot.
  task<owner_access> answer_of(std::uint8_t slot) {
    for (hear(); !answers_.contains(slot); hear()) co_await yield();
    const owner_access found = answers_.at(slot);
    answers_.erase(slot);
    co_return found;
  }
  [[nodiscard]] bool has_answer_of(std::uint8_t slot) {
    hear();
    return answers_.contains(slot);
  }
  task<owner_access> answer_to(const owner_message& what) {
    ask(what);
    return answer_of(what.slot);
  }

 private:
  void hear() {
    bytes payload;
    while (const auto next = hand_.take(&payload)) {
      if (++taken_ % 256 == 0) hand_.release();
      if (next->kind != record_kind::send) continue;
      const auto end = net::trailer::unpack(payload);
      if (!end || end->kind != net::message_kind::device_memory) continue;
      const auto said = owner_message::unpack(std::span(payload).first(payload.size() - net::trailer::bytes));
      if (said && said->what == verb::answer) {
        answers_[said->slot] = said->status;
      } else {
        ADD_FAILURE() << "no answer";
      }
    }
  }

  manual_end& hand_;
  std::size_t taken_ = 0;
  std::map<std::uint8_t, owner_access> answers_;
};

class hostile_sharing : public shm_link_test {
 protected:
  // Runs `script(asking, connection)`. Nothing that was shared is open afterwards, and no copy has failed.
  void against(const test_script<asking_end&, net::connection&>& script) {
    const auto body = [&]() -> task<> {
      const mr::region region = co_await owned_memory(gpu, true);
      key = key_of(region);
      memory = region.bytes();
      {
        auto both = co_await connect_by_hand(true, greeting(), {.device_memory = true});
        asking_end asking(std::get<0>(both));
        co_await script(asking, std::get<1>(both));
        std::get<1>(both).abort();
      }
      while (driver.counts().opened != 0) co_await yield();  // a worker closes it
      co_await expect_working_device();
    };
    run(body);
  }
  template <class Script>
  void against_lender(Script script) {
    lender other;
    against([&](asking_end& peer, net::connection& victim) { return script(other, peer, victim); });
  }
  task<mr::region> owned_memory(const std::shared_ptr<mr::memory_device>& of, bool direct) {
    mr::device_memory made = of->allocate(lent_bytes);
    driver.poke(made.bytes(), content_of(of_owner));
    co_return co_await device().domain().register_memory(
        std::move(made), {.usage = mr::usage::write_dst | mr::usage::read_src, .device = of.get(), .direct = direct});
  }
  [[nodiscard]] static std::uint64_t key_of(const mr::region& region) {
    return region.remote().on(mr::place_behind_owner)->key;
  }
  // A copy that touches what is not there is the end of all copies of its device.
  task<> expect_working_device() {
    const auto stream = gpu->open_stream();
    std::vector<std::byte> some(16);
    EXPECT_TRUE(stream->copy(some.data(), memory.data(), some.size()));
    stream->synchronize();
    co_return;
  }

  [[nodiscard]] owner_message share(const lender& from, std::uint8_t slot = 0) const {
    return {.what = verb::share, .slot = slot, .key = key, .shared = from.shared(), .shared_bytes = lent_bytes};
  }
  [[nodiscard]] static owner_message unshare(std::uint8_t slot = 0) { return {.what = verb::unshare, .slot = slot}; }
  [[nodiscard]] owner_message direct(verb what, std::uint8_t slot = 1, std::uint32_t bytes = lent_bytes,
                                     std::uint64_t shared_offset = 0) const {
    return {.what = what, .slot = slot, .direct = true, .bytes = bytes, .key = key, .shared_offset = shared_offset};
  }
  [[nodiscard]] bool holds(unsigned seed) const { return driver.peek(memory) == content_of(seed); }
  // Until the driver has a copy that it does not carry out.
  task<> until_held_up() {
    while (driver.outstanding() == 0) co_await yield();
  }

  stand_in driver;
  std::shared_ptr<mr::memory_device> gpu = mr::open_cuda({.library = stand_in::library()});
  std::uint64_t key = 0;        // of this end's memory
  std::span<std::byte> memory;  // which that opens

 private:
  static bytes greeting() {
    const auto packed =
        net::greeting{.receive_depth = 16, .receive_size = 4096, .features = {.device_memory = true}}.pack();
    return {packed.begin(), packed.end()};
  }
};

// With a process whose memory the peer shares.
#define TEST_F_AGAINST(fixture, name)                                                                          \
  TEST_F_SCRIPT(fixture, name, (lender & other, asking_end & peer, [[maybe_unused]] net::connection & victim), \
                against_lender(WEFT_SCRIPT))

TEST_F(hostile_sharing, that_takes_memory_back_while_it_is_copied_has_it_open_until_the_copy_has_ended) {
  for (const verb what : {verb::put, verb::get}) {
    lender other;
    against([&](asking_end& peer, net::connection&) -> task<> {
      EXPECT_EQ(co_await peer.answer_to(share(other)), owner_access::done);
      driver.hold();
      peer.ask(direct(what));
      co_await until_held_up();
      EXPECT_EQ(co_await peer.answer_to(unshare()), owner_access::done);
      EXPECT_EQ(driver.counts().opened, 1u);
      EXPECT_FALSE(peer.has_answer_of(1));
      EXPECT_EQ(co_await peer.answer_to(direct(what, 2)), owner_access::not_allowed);
      driver.release();
      EXPECT_EQ(co_await peer.answer_of(1), owner_access::done);
      EXPECT_TRUE(what == verb::put ? holds(of_lender) : other.content() == content_of(of_owner));
    });
  }
}

TEST_F(hostile_sharing, that_shares_anew_while_memory_is_copied_has_the_former_open_until_the_copy_has_ended) {
  lender former;
  lender latter;
  against([&](asking_end& peer, net::connection&) -> task<> {
    EXPECT_EQ(co_await peer.answer_to(share(former)), owner_access::done);
    driver.hold();
    peer.ask(direct(verb::get));
    co_await until_held_up();
    EXPECT_EQ(co_await peer.answer_to(share(latter)), owner_access::done);
    EXPECT_EQ(driver.counts().opened, 2u);
    driver.release();
    EXPECT_EQ(co_await peer.answer_of(1), owner_access::done);
    EXPECT_EQ(former.content(), content_of(of_owner));
    EXPECT_EQ(latter.content(), content_of(of_lender));
    while (driver.counts().opened != 1) co_await yield();  // a worker closes the former
    EXPECT_EQ(co_await peer.answer_to(direct(verb::get)), owner_access::done);
    EXPECT_EQ(latter.content(), content_of(of_owner));
  });
}

// The driver opens the same memory at the same place, and closes it once for each time.
TEST_F_AGAINST(hostile_sharing, that_shares_the_same_anew_while_it_is_copied_keeps_it_open) {
  EXPECT_EQ(co_await peer.answer_to(share(other)), owner_access::done);
  driver.hold();
  peer.ask(direct(verb::put));
  co_await until_held_up();
  EXPECT_EQ(co_await peer.answer_to(share(other)), owner_access::done);
  driver.release();
  EXPECT_EQ(co_await peer.answer_of(1), owner_access::done);
  while (driver.counts().opened != 1) co_await yield();
  EXPECT_EQ(co_await peer.answer_to(direct(verb::get)), owner_access::done);
}

TEST_F_AGAINST(hostile_sharing, that_shares_in_all_slots_at_once_has_one_of_them_open) {
  for (std::uint8_t slot = 0; slot != owner_message::slots; ++slot) peer.ask(share(other, slot));
  for (std::uint8_t slot = 0; slot != owner_message::slots; ++slot) {
    EXPECT_EQ(co_await peer.answer_of(slot), owner_access::done);
  }
  while (driver.counts().opened != 1) co_await yield();
  EXPECT_EQ(co_await peer.answer_to(direct(verb::put)), owner_access::done);
  EXPECT_EQ(co_await peer.answer_to(unshare()), owner_access::done);
  EXPECT_EQ(driver.counts().opened, 0u);
}

TEST_F_AGAINST(hostile_sharing, that_asks_beyond_what_it_has_shared_is_refused_and_nothing_is_copied) {
  owner_message half = share(other);
  half.shared_bytes = lent_bytes / 2;
  EXPECT_EQ(co_await peer.answer_to(half), owner_access::done);
  for (const verb what : {verb::put, verb::get}) {
    const std::array<owner_message, 5> beyond{direct(what, 1, lent_bytes / 2 + 1), direct(what, 1, 1, lent_bytes / 2),
                                              direct(what, 1, 2, lent_bytes / 2 - 1), direct(what, 1, 1, UINT64_MAX),
                                              direct(what, 1, 16, UINT64_MAX - 7)};
    for (const owner_message& each : beyond) {
      EXPECT_EQ(co_await peer.answer_to(each), owner_access::not_allowed) << each.bytes << " " << each.shared_offset;
    }
    owner_message behind_own = direct(what, 1, 16);
    for (const std::uint64_t offset : {std::uint64_t{lent_bytes - 15}, UINT64_MAX - 7, UINT64_MAX}) {
      behind_own.offset = offset;
      EXPECT_EQ(co_await peer.answer_to(behind_own), owner_access::out_of_range) << offset;
    }
  }
  EXPECT_TRUE(holds(of_owner));
  EXPECT_EQ(other.content(), content_of(of_lender));
  EXPECT_EQ(co_await peer.answer_to(direct(verb::put, 1, lent_bytes / 2)), owner_access::done);
}

TEST_F_AGAINST(hostile_sharing, that_has_shared_nothing_or_nothing_any_more_is_refused) {
  for (int round = 0; round != 2; ++round) {
    for (const verb what : {verb::put, verb::get}) {
      EXPECT_EQ(co_await peer.answer_to(direct(what)), owner_access::not_allowed);
      EXPECT_EQ(co_await peer.answer_to(direct(what, 1, 0)), owner_access::not_allowed);
    }
    EXPECT_EQ(co_await peer.answer_to(unshare()), owner_access::done);
    EXPECT_EQ(co_await peer.answer_to(share(other)), owner_access::done);
    EXPECT_EQ(co_await peer.answer_to(unshare()), owner_access::done);
  }
  EXPECT_TRUE(holds(of_owner));
}

TEST_F_AGAINST(hostile_sharing, of_what_cannot_be_opened_is_refused) {
  const auto closed = co_await owned_memory(gpu, false);
  const auto changed = [&](auto change) {
    owner_message what = share(other);
    change(what);
    return peer.answer_to(what);
  };
  EXPECT_EQ(co_await changed([](owner_message& what) { what.shared_bytes = 0; }), owner_access::not_allowed);
  EXPECT_EQ(co_await changed([](owner_message& what) { ++what.key; }), owner_access::not_allowed);
  EXPECT_EQ(co_await changed([&](owner_message& what) { what.key = key_of(closed); }), owner_access::not_allowed);
  EXPECT_EQ(co_await changed([](owner_message& what) { ++what.shared_bytes; }), owner_access::device_failed);
  EXPECT_EQ(co_await changed([](owner_message& what) { what.shared_bytes = UINT64_MAX; }), owner_access::device_failed);
  EXPECT_EQ(co_await changed([](owner_message& what) { what.shared.offset = 1; }), owner_access::device_failed);
  EXPECT_EQ(co_await changed([](owner_message& what) { what.shared.offset = UINT64_MAX; }),
            owner_access::device_failed);
  EXPECT_EQ(co_await changed([](owner_message& what) { what.shared.handle.fill(std::byte{0x5a}); }),
            owner_access::device_failed);
  EXPECT_EQ(driver.counts().opened, 0u);
  EXPECT_EQ(co_await peer.answer_to(direct(verb::put)), owner_access::not_allowed);
}

TEST_F(hostile_sharing, with_one_device_opens_nothing_to_another) {
  lender other;
  const auto second = mr::open_cuda({.device = 1, .library = stand_in::library()});
  against([&](asking_end& peer, net::connection&) -> task<> {
    const auto there = co_await owned_memory(second, true);
    owner_message wrong = share(other);
    wrong.key = key_of(there);
    EXPECT_EQ(co_await peer.answer_to(wrong), owner_access::device_failed);
    EXPECT_EQ(co_await peer.answer_to(share(other)), owner_access::done);
    wrong = direct(verb::put);
    wrong.key = key_of(there);
    EXPECT_EQ(co_await peer.answer_to(wrong), owner_access::not_allowed);
  });
}

// A slot has one request at a time.
TEST_F(hostile_sharing, that_uses_a_slot_anew_before_its_answer_loses_its_connection_behind_its_copies) {
  lender other;
  for (const verb what : {verb::share, verb::unshare, verb::put, verb::get}) {
    against([&](asking_end& peer, net::connection& victim) -> task<> {
      EXPECT_EQ(co_await peer.answer_to(share(other)), owner_access::done);
      driver.hold();
      peer.ask(direct(verb::put));
      co_await until_held_up();
      peer.ask(what == verb::share ? share(other, 1) : what == verb::unshare ? unshare(1) : direct(what));
      EXPECT_EQ(co_await code_of(victim.recv()), errc::protocol_error);
      EXPECT_EQ(driver.counts().opened, 1u);
      driver.release();
    });
  }
}

TEST_F_AGAINST(hostile_sharing, that_vanishes_while_memory_is_copied_has_it_open_until_the_copy_has_ended) {
  EXPECT_EQ(co_await peer.answer_to(share(other)), owner_access::done);
  driver.hold();
  peer.ask(direct(verb::get));
  co_await until_held_up();
  peer.ask(unshare());
  victim.abort();
  co_await settle();
  EXPECT_EQ(driver.counts().opened, 1u);
  driver.release();
}

// All that a peer can ask for, in any order and in all slots at a time.
TEST_F(hostile_sharing, in_any_order_is_answered_and_copies_nothing_that_is_closed) {
  lender one;
  lender another;
  std::mt19937 random(1);
  against([&](asking_end& peer, net::connection&) -> task<> {
    const auto any = [&](std::uint8_t slot) -> owner_message {
      switch (random() % 6) {
        case 0:
          return share(one, slot);
        case 1:
          return share(another, slot);
        case 2:
          return unshare(slot);
        default:
          return direct(random() % 2 == 0 ? verb::put : verb::get, slot,
                        static_cast<std::uint32_t>(random() % lent_bytes),
                        random() % lent_bytes);  // half of these reach beyond
      }
    };
    for (int round = 0; round != 50; ++round) {
      for (std::uint8_t slot = 0; slot != owner_message::slots; ++slot) peer.ask(any(slot));
      for (std::uint8_t slot = 0; slot != owner_message::slots; ++slot) {
        const owner_access found = co_await peer.answer_of(slot);
        EXPECT_TRUE(found == owner_access::done || found == owner_access::not_allowed) << static_cast<int>(found);
      }
    }
    EXPECT_EQ(co_await peer.answer_to(share(one)), owner_access::done);
    EXPECT_EQ(co_await peer.answer_to(direct(verb::put)), owner_access::done);
    EXPECT_EQ(driver.peek(memory), one.content());
  });
}

}  // namespace
}  // namespace weft::test
