// SPDX-License-Identifier: Apache-2.0
// Rails that join, carry their part, end and come back while a connection lives.
#include <weft/net/rails/patience.hpp>

#include <sys/socket.h>

#include "ends.hpp"
#include "kit/clock.hpp"
#include "kit/expect_failure.hpp"

namespace weft::test {
namespace {

using namespace std::chrono_literals;

// Tells a test of each control message that comes to an end of a link, once that end has acted on it.
class overheard_link final : public overhearing_link {
 public:
  using told = std::function<void(const net::rails::control&)>;

  overheard_link(std::unique_ptr<net::link> bare, told whom)
      : overhearing_link(std::move(bare)), told_(std::move(whom)) {}

 private:
  void received(net::receive_work& work, const net::arrival& what) noexcept override {
    const told whom = told_;  // the event may end the link
    const auto said = net::rails::control::unpack(work.memory.bytes().first(what.immediate ? 0 : what.bytes));
    events().received(work, what);
    if (said) whom(*said);
  }

  const told told_;
};

// A link that may take its time, once it has ended, to give its receives back and to close.
class slow_link final : public overhearing_link {
 public:
  slow_link(std::unique_ptr<net::link> bare, std::set<slow_link*>& all, const bool& is_slow)
      : overhearing_link(std::move(bare)), all_(all), is_slow_(is_slow) {
    all_.insert(this);
  }
  ~slow_link() override { all_.erase(this); }

  void post_receive(net::receive_work& work) noexcept override {
    is_closed_ ? kept_.push_back(&work) : forwarding_link::post_receive(work);
  }
  // Once it is slow no more. It may be destroyed by that.
  void go_on() noexcept {
    for (net::receive_work* each : std::exchange(kept_, {})) events().receive_flushed(*each);
    if (is_closed_) events().closed();
  }

 private:
  void receive_flushed(net::receive_work& work) noexcept override {
    is_slow_ ? kept_.push_back(&work) : events().receive_flushed(work);
  }
  void closed() noexcept override {
    is_closed_ = true;
    if (!is_slow_) events().closed();
  }

  std::set<slow_link*>& all_;
  const bool& is_slow_;
  bool is_closed_ = false;
  std::vector<net::receive_work*> kept_;
};

// A link whose end by a refusal of its peer may come late to this side. One that is given up before does not hear of
// the refusal.
class tardy_link final : public overhearing_link {
 public:
  tardy_link(std::unique_ptr<net::link> bare, std::set<tardy_link*>& all, const bool& is_tardy)
      : overhearing_link(std::move(bare)), all_(all), is_tardy_(is_tardy) {
    all_.insert(this);
  }
  ~tardy_link() override { all_.erase(this); }

  void abort(std::string_view why) noexcept override {
    if (!why_) return forwarding_link::abort(why);
    is_unheard_ = true;
    why_ = error(errc::closed, std::string(why));
    go_on();
  }
  [[nodiscard]] std::optional<net::refused_access> refusal() const noexcept override {
    return is_unheard_ ? std::nullopt : forwarding_link::refusal();
  }
  // It may be destroyed by that.
  void go_on() noexcept {
    if (!why_) return;
    events().ended(false, *std::exchange(why_, std::nullopt));
    for (const auto& each : std::exchange(later_, {})) each();
  }

 private:
  void ended(bool orderly, const error& why) noexcept override {
    const auto what = refusal();
    if (!is_tardy_ || !what || what->is_peers) return events().ended(orderly, why);
    why_ = why;
  }
  void completed(net::work_request& work, net::work_status status) noexcept override {
    if (!why_) return events().completed(work, status);
    later_.emplace_back(
        [this, &work, status] { events().completed(work, is_unheard_ ? net::work_status::flushed : status); });
  }
  void receive_flushed(net::receive_work& work) noexcept override {
    if (!why_) return events().receive_flushed(work);
    later_.emplace_back([this, &work] { events().receive_flushed(work); });
  }
  void closed() noexcept override {
    if (!why_) return events().closed();
    later_.emplace_back([this] { events().closed(); });
  }

  std::set<tardy_link*>& all_;
  const bool& is_tardy_;
  bool is_unheard_ = false;
  std::optional<error> why_;  // set: it has ended, which was not said yet
  std::vector<std::function<void()>> later_;
};

// Two ends of a connection of two rails over one listener, which stays for as long as they do.
class rails : public two_rails {
 protected:
  void between_ends(const test_script<ends>& script, std::chrono::milliseconds resume_within = 0ms) {
    between_ends_on(home_, script, resume_within);
  }
  void between_ends_on(executor& home, const test_script<ends>& script, std::chrono::milliseconds resume_within = 0ms) {
    const net::connection_options how{.send_depth = send_depth_, .resume_within = resume_within};
    home.run(with_timeout(forever, with_ends(device_, device_, two_ports(), how, script)));
  }
  task<> send_number(net::connection& over, std::uint32_t number) {
    auto words = co_await pool().allocate(sizeof number);
    std::memcpy(words.bytes().data(), &number, sizeof number);
    co_await over.send(std::move(words));
  }
  // From 0 on, in order.
  static task<> expect_numbers(net::connection& at, std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto message = co_await at.recv_or_throw();
      std::uint32_t number = count;
      EXPECT_EQ(message.size(), sizeof number);
      std::memcpy(&number, message.bytes().data(), sizeof number);
      EXPECT_EQ(number, i);
    }
  }

  std::uint16_t send_depth_ = 64;

 private:
  executor home_;
};

// Flips one bit of the next large send, at some byte.
class flipping_calls final : public system_calls {
 public:
  std::optional<std::size_t> at;

  ssize_t sendmsg(int fd, const msghdr* message, int flags) noexcept override {
    std::vector<std::byte> copy;
    for (const iovec& each : std::span(message->msg_iov, message->msg_iovlen)) {
      const auto* const bytes = static_cast<const std::byte*>(each.iov_base);
      copy.insert(copy.end(), bytes, bytes + each.iov_len);
    }
    if (!at || copy.size() < large) return system_calls::sendmsg(fd, message, flags);
    copy[*std::exchange(at, std::nullopt)] ^= std::byte{1};
    iovec all{.iov_base = copy.data(), .iov_len = copy.size()};
    msghdr damaged = *message;
    damaged.msg_iov = &all;
    damaged.msg_iovlen = 1;
    return system_calls::sendmsg(fd, &damaged, flags);
  }

 private:
  static constexpr std::size_t large = 60'000;
};

class damaged_rails : public testing::TestWithParam<std::size_t> {
 protected:
  // One write over so many rails, during which that bit is flipped.
  static void write_over(std::size_t rails, net::connection_options how) {
    flipping_calls calls;
    executor home({.driver = driver_choice::epoll, .system_calls = &calls});  // a ring makes its calls itself
    net::device device = net::device::open(rails == 2 ? "iwarp+iwarp" : "iwarp", {.iwarp = {.checksum = true}});
    const auto are_up = [&](const net::connection& at) {
      const auto all = at.rails();
      return std::ranges::count(all, net::rail_state::up, &net::rail_statistics::state) == std::ptrdiff_t(rails);
    };
    const auto script = [&](ends both) -> task<> {
      const auto target = co_await expose_zeros(device.pool(), both.server, mebibyte);
      while (!are_up(both.client) || !are_up(both.server)) co_await yield();
      calls.at = GetParam();
      co_await both.client.write(co_await filled_with(device.pool(), mebibyte, std::byte{7}), target.remote());
      EXPECT_FALSE(calls.at);
      EXPECT_TRUE(is_all(target.memory().bytes(), std::byte{7}));
      std::uint64_t lost = 0;
      for (const auto& each : both.client.rails()) lost += each.so_far.lost;
      EXPECT_EQ(lost, 1u);
    };
    const std::string addresses = rails == 2 ? two_ports() : own_loopback() + ":0";
    home.run(with_timeout(forever, with_ends(device, device, addresses, how, script)));
  }
};

TEST_P(damaged_rails, are_lost_alone_when_a_bit_is_flipped_on_the_way) {
  write_over(2, {});
  write_over(1, {.resume_within = forever});
}

// Of the length, the first byte behind it, the key and the payload of the first FPDU.
INSTANTIATE_TEST_SUITE_P(in_byte, damaged_rails, testing::Values(1, 3, 4, 1000), testing::PrintToStringParamName());

TEST(rails_patience, grows_with_silence_that_was_none_and_is_forgotten) {
  net::rails::patience how_long;
  EXPECT_EQ(how_long.looks(), net::rails::patience::least);
  how_long.moved_after(1);
  EXPECT_EQ(how_long.looks(), net::rails::patience::least);
  for (int i = 0; i < 4; ++i) how_long.moved_after(how_long.looks() - 1);
  EXPECT_EQ(how_long.looks(), net::rails::patience::most);
  for (unsigned i = 0; i < net::rails::patience::most * net::rails::patience::looks_to_forget; ++i) how_long.age();
  EXPECT_EQ(how_long.looks(), net::rails::patience::least);
}

constexpr std::size_t block = std::size_t{64} << 10;

// Backwards, so that no two neighbours are so at the other end.
std::vector<net::block_pair> reversed(std::uint32_t count) {
  std::vector<net::block_pair> pairs;
  for (std::uint32_t i = 0; i != count; ++i) pairs.push_back({.local = i, .remote = count - 1 - i});
  return pairs;
}

bool are_reversed(std::span<const std::byte> here, std::span<const std::byte> there, std::size_t count) {
  for (std::size_t i = 0; i != count; ++i) {
    const auto other = there.subspan((count - 1 - i) * block, block);
    if (!std::ranges::equal(here.subspan(i * block, block), other)) return false;
  }
  return true;
}

TEST_F_BETWEEN_ENDS(rails, a_list_of_blocks_goes_over_both_and_tells_the_peer_once_all_of_them_are_there) {
  constexpr std::uint32_t count = 100;
  const auto target = co_await spread_target(both, count * block);
  const auto source = co_await filled(count * block, 5);
  const auto pairs = reversed(count);
  const net::block_list all{.local = source.slice(), .remote = target.remote(), .block_bytes = block, .blocks = pairs};
  const std::uint64_t first = messages().moved;
  const std::uint64_t second = other().moved;
  const auto waiting = [&]() -> task<> {
    const auto note = co_await both.server.recv_or_throw();
    EXPECT_EQ(note.immediate, 9u);
    EXPECT_TRUE(are_reversed(source.bytes(), target.memory().bytes(), count));
  };
  co_await when_all(both.client.write(all, {.immediate = 9}), waiting());
  EXPECT_GT(messages().moved - first, count / 10);
  EXPECT_GT(other().moved - second, count / 10);
  EXPECT_GE(messages().moved - first + other().moved - second, count);
  auto copy = co_await pool().allocate(count * block);
  const net::block_list back{.local = copy.slice(), .remote = target.remote(), .block_bytes = block, .blocks = pairs};
  co_await both.client.read(back);
  EXPECT_TRUE(are_reversed(copy.bytes(), target.memory().bytes(), count));
}

TEST_F(rails, a_list_arrives_whole_whichever_rail_ends_under_it_and_wherever) {
  constexpr std::uint32_t count = 60;
  for (const bool first_ends : {true, false}) {
    for (const unsigned place : {1u, 7u, 20u}) {
      SCOPED_TRACE(testing::Message() << "rail " << (first_ends ? 0 : 1) << " ends at element " << place);
      between_ends([&](ends both) -> task<> {
        const auto target = co_await spread_target(both, count * block);
        const auto source = co_await filled(count * block, place);
        const auto pairs = reversed(count);
        const net::block_list all{
            .local = source.slice(), .remote = target.remote(), .block_bytes = block, .blocks = pairs};
        (first_ends ? messages() : other()).cut_before(net::work_kind::write, place);
        auto push = both.client.write(all);
        co_await push;
        EXPECT_EQ(push.done(), count);
        (first_ends ? messages() : other()).is_cut_before = nullptr;
        auto copy = co_await pool().allocate(count * block);
        co_await both.client.read(copy, target.remote());
        EXPECT_TRUE(are_reversed(source.bytes(), copy.bytes(), count));
      });
    }
  }
}

TEST_F(rails, a_large_transfer_of_a_connection_that_has_few_requests_at_a_time_arrives_whole) {
  send_depth_ = 1;
  between_ends([&](ends both) -> task<> {
    const auto target = co_await spread_target(both, 16 * mebibyte);
    auto source = co_await filled(16 * mebibyte, 5);
    co_await both.client.write(source, target.remote());
    EXPECT_TRUE(holds(target.memory().bytes(), 5));
  });
}

TEST_F(rails, a_transfer_arrives_whole_whichever_rail_ends_under_it_and_wherever) {
  for (std::size_t which = 0; which < 2; ++which) {
    for (const unsigned slice : {1u, 2u, 7u}) {
      SCOPED_TRACE(testing::Message() << "cable " << which << " before request " << slice);
      between_ends([&](ends both) -> task<> {
        const auto target = co_await spread_target(both, 4 * mebibyte);
        auto source = co_await filled(4 * mebibyte, slice);
        cables_[which]->cut_before(net::work_kind::write, slice);
        co_await both.client.write(source, target.remote());
        EXPECT_FALSE(cables_[which]->is_cut_before);
        EXPECT_TRUE(holds(target.memory().bytes(), slice));
        auto copy = co_await pool().allocate(4 * mebibyte);
        co_await both.client.read(copy, target.remote());
        EXPECT_TRUE(holds(copy.bytes(), slice));
      });
    }
  }
}

TEST_F(rails, messages_come_once_and_in_order_whichever_end_loses_the_rail_that_carries_them) {
  for (const unsigned at : {1u, 2u, 10u, 39u, 40u}) {
    SCOPED_TRACE(at);
    between_ends([&](ends both) -> task<> {
      const auto target = co_await spread_target(both, mebibyte);
      messages().cut_before(net::work_kind::send, at);
      constexpr std::uint32_t count = 100;
      const auto sending = [&]() -> task<> {
        for (std::uint32_t i = 0; i < count; ++i) co_await send_number(both.client, i);
      };
      co_await when_all(sending(), expect_numbers(both.server, count));
      EXPECT_FALSE(messages().is_cut_before);
    });
  }
}

TEST_F_BETWEEN_ENDS(rails, messages_that_a_dead_network_has_swallowed_come_over_another) {
  const auto target = co_await spread_target(both, mebibyte);
  messages().loses_sends = true;
  constexpr std::uint8_t count = 12;
  for (std::uint8_t i = 0; i < count; ++i) {
    auto words = co_await pool().allocate(100);
    std::fill(words.bytes().begin(), words.bytes().end(), std::byte{i});
    co_await both.client.send(words);
    std::fill(words.bytes().begin(), words.bytes().end(), std::byte{0xff});  // it is ours again
  }
  for (std::uint8_t i = 0; i < count; ++i) {
    const auto message = co_await both.server.recv_or_throw();
    EXPECT_EQ(message.size(), 100u);
    EXPECT_EQ(message.bytes().front(), std::byte{i});
    EXPECT_EQ(message.bytes().back(), std::byte{i});
  }
  messages().loses_sends = false;
}

// The network dies between a question and the message behind it; the answer still comes.
TEST_F(rails, a_message_behind_a_question_is_not_taken_for_arrived_by_the_answer) {
  using net::rails::control_kind;
  between_ends([&](ends both) -> task<> {
    const auto target = co_await spread_target(both, mebibyte);
    bool is_asked = false;
    bool is_dead = false;
    messages().is_cut_before = [&](const net::work_request& work) {
      is_asked = is_asked || says(work, control_kind::confirm);
      is_dead = is_dead || (work.kind == net::work_kind::send && !is_control(work));
      messages().loses_sends = is_dead && !says(work, control_kind::confirmed);
      return false;
    };
    const auto writing = [&]() -> task<> {
      co_await both.client.write(co_await filled(100, 1), target.remote().slice(0, 100));
    };
    const auto sending = [&]() -> task<> {
      auto text = co_await filled(100, 3);
      while (!is_asked) co_await yield();
      co_await both.client.send(std::move(text));
    };
    co_await when_all(writing(), sending());
    messages().is_cut_before = nullptr;
    messages().loses_sends = false;
    messages().cut();
    EXPECT_TRUE(holds((co_await both.server.recv_or_throw()).bytes(), 3));
  });
}

TEST_F(rails, a_read_whose_rail_ends_is_done_again_unless_what_was_issued_behind_it_may_have_changed_what_it_reads) {
  for (const bool may_have_changed : {false, true}) {
    SCOPED_TRACE(may_have_changed);
    between_ends([&](ends both) -> task<> {
      const auto target = co_await spread_target(both, mebibyte);
      const auto place = target.remote();
      auto copy = co_await filled(100, 1);
      auto source = co_await filled(100, 2);
      messages().cut_before(net::work_kind::write);
      const auto writing = [&]() -> task<> {
        co_await both.client.write(source, place.slice(may_have_changed ? 50 : 100, 100));
      };
      const auto [why, written] = co_await when_all(code_of(both.client.read(copy, place.slice(0, 100))), writing());
      EXPECT_EQ(why, may_have_changed ? std::error_code(errc::outcome_unknown) : std::error_code());
      EXPECT_TRUE(may_have_changed || holds(copy.bytes(), 0));
    });
  }
}

TEST_F_BETWEEN_ENDS(rails, one_that_has_ended_comes_back_and_carries_its_part_again) {
  const auto target = co_await expose_zeros(both.server, mebibyte);
  for (unsigned round = 0; round < 6; ++round) {
    for (const auto& each : cables_) co_await until_spread_over(both.client, target, *each);
    cables_[round % 2]->cut();
  }
  for (const auto& each : cables_) co_await until_spread_over(both.client, target, *each);
  EXPECT_GE(messages().made, 8u);
  EXPECT_GE(other().made, 8u);
}

TEST_F(rails, one_that_only_the_accepting_end_takes_for_made_comes_all_the_same) {
  const auto lose = [](cable& which) {
    which.lost_answers = 3;
    which.cut();
  };
  other().lost_answers = 3;
  between_ends([&](ends both) -> task<> {
    const auto target = co_await spread_target(both, mebibyte);
    for (const auto& each : cables_) {
      lose(*each);
      co_await until_spread_over(both.client, target, *each);
      EXPECT_EQ(each->lost_answers, 0u);
    }
  });
}

TEST_F_BETWEEN_ENDS(rails, one_that_is_silent_is_given_up_while_another_moves) {
  const auto target = co_await spread_target(both, 4 * mebibyte);
  other().is_silent = true;
  auto source = co_await filled(4 * mebibyte, 9);
  co_await both.client.write(source, target.remote());
  EXPECT_TRUE(holds(target.memory().bytes(), 9));
}

TEST_F_BETWEEN_ENDS(rails, a_question_about_one_that_has_ended_is_asked_again_when_the_next_falls_silent) {
  const auto target = co_await spread_target(both, mebibyte);
  messages().is_cut_before = [&](const net::work_request& work) {
    if (work.kind == net::work_kind::send) other().is_silent = true;
    return work.kind == net::work_kind::send;
  };
  co_await both.client.send(co_await filled(100, 3));
  EXPECT_TRUE(holds((co_await both.server.recv_or_throw()).bytes(), 3));
  other().is_silent = false;
}

TEST_F(rails, one_that_falls_silent_before_its_first_word_is_asked_for_anew) {
  other().is_silent = true;
  between_ends([&](ends both) -> task<> {
    const auto target = co_await expose_zeros(both.server, mebibyte);
    while (other().posted == 0) co_await yield();
    other().is_silent = false;
    co_await until_spread_over(both.client, target, other());
  });
}

TEST_F(rails, a_listener_goes_on_without_a_device_that_was_removed) {
  other().is_removed = true;
  between_ends([&](ends both) -> task<> {
    co_await both.client.send(co_await filled(100, 3));
    EXPECT_TRUE(holds((co_await both.server.recv_or_throw()).bytes(), 3));
  });
  messages().is_removed = true;
  EXPECT_THROW(between_ends([](ends) -> task<> { co_return; }), error);
}

TEST_F(rails, each_asks_for_signs_of_life_at_the_device_that_it_reaches) {
  messages().landing = {.key = 1, .address = 10};
  other().landing = {.key = 2, .address = 20};
  for (const bool begins_over_other : {false, true}) {
    messages().is_down = begins_over_other;
    for (const auto& each : cables_) each->landings.clear();
    between_ends([&](ends both) -> task<> {
      messages().is_down = false;
      const auto target = co_await expose_zeros(both.server, mebibyte);
      co_await until_spread_over(both.client, target, begins_over_other ? messages() : other());
    });
    for (const auto& each : cables_) EXPECT_EQ(each->landings, std::vector(2, each->landing));
  }
}

TEST_F_BETWEEN_ENDS(rails, an_atomic_operation_whose_rail_ends_happens_at_most_once_and_says_that_it_may_have) {
  const auto target = co_await spread_target(both, mebibyte);
  const auto word = target.remote().slice(0, 8);
  co_await both.client.write(co_await zeroed(pool(), 8), word);
  const auto before = co_await both.client.fetch_add(word, 1);
  messages().cut_before(net::work_kind::fetch_add);
  EXPECT_EQ(co_await code_of(both.client.fetch_add(word, 1)), errc::outcome_unknown);
  const auto now = co_await both.client.fetch_add(word, 0);
  EXPECT_LE(now, before + 2);
  EXPECT_GE(now, before + 1);
}

TEST_F_BETWEEN_ENDS(rails, memory_that_is_being_exposed_may_be_let_go_beside_others) {
  event open;
  messages().exposes = &open;
  constexpr std::size_t count = 20;
  std::vector<std::optional<net::exposure>> made(count);
  const auto expose = [&](std::size_t i) -> task<> { made[i] = co_await expose_zeros(both.server, 100); };
  const auto all = [&](scope& staying) -> task<> {
    const auto first = [&](scope& leaving) -> task<> {
      leaving.spawn(expose(0));
      for (std::size_t i = 1; i < count; ++i) staying.spawn(expose(i));
      co_await yield();
      leaving.request_stop();
    };
    co_await with_scope(on_failure::report, first);
    open.set();
  };
  co_await with_scope(on_failure::report, all);
  messages().exposes = nullptr;
  EXPECT_FALSE(made[0].has_value());
  for (std::size_t i = 1; i < count; ++i) {
    co_await both.client.write(co_await filled(100, static_cast<unsigned>(i)), made[i]->remote());
    EXPECT_TRUE(holds(made[i]->memory().bytes(), static_cast<unsigned>(i)));
  }
}

TEST_F_BETWEEN_ENDS(rails, memory_is_taken_back_while_another_rail_finds_no_memory_to_open_it) {
  const auto target = co_await spread_target(both, mebibyte);
  event open;
  other().exposes = &open;
  const std::size_t before = other().exposing;
  auto lent = co_await expose_zeros(both.server, 100);
  while (other().exposing == before) co_await yield();
  const auto taking_back = [&]() -> task<> { static_cast<void>(co_await lent.revoke()); };
  const auto failing = [&]() -> task<> {
    other().has_no_memory = true;
    open.set();
    co_return;
  };
  co_await when_all(taking_back(), failing());
  other().exposes = nullptr;
  other().has_no_memory = false;
  co_await send_number(both.client, 0);
  co_await expect_numbers(both.server, 1);
}

// Its owner takes it back after the peer has announced the message that gives it back, which is lost with its rail.
TEST_F(rails, memory_that_was_given_back_is_given_back_once_more_although_its_owner_has_taken_it_back_meanwhile) {
  bool is_heard = false;
  messages().covers = [&](std::unique_ptr<net::link> made) {
    return std::make_unique<overheard_link>(std::move(made), [&](const net::rails::control& said) {
      is_heard = is_heard || said.kind == net::rails::control_kind::revoke;
    });
  };
  between_ends([&](ends both) -> task<> {
    const auto target = co_await spread_target(both, mebibyte);
    auto lent = co_await expose_zeros(both.server, 100);
    const std::uint64_t key = lent.remote().key();
    bool is_announced = false;
    messages().is_cut_before = [&](const net::work_request& work) {
      is_announced = is_announced || says(work, net::rails::control_kind::revoke);
      const bool is_message = work.kind == net::work_kind::send && !is_control(work);
      messages().is_silent = messages().is_silent || (is_announced && is_message);
      return false;
    };
    const auto giving_back = [&]() -> task<> {
      auto note = co_await filled(100, 3);
      co_await both.client.send(note, {.invalidate = key});
    };
    const auto taking_back = [&]() -> task<> {
      while (!is_heard) co_await yield();
      static_cast<void>(co_await lent.revoke());
      messages().is_cut_before = nullptr;
      messages().is_silent = false;
      messages().cut();
      const auto message = co_await both.server.recv_or_throw();
      EXPECT_EQ(message.invalidated_key, key);
      EXPECT_TRUE(holds(message.bytes(), 3));
    };
    co_await when_all(giving_back(), taking_back());
  });
}

// ---- memory that was taken back ----

// Both ends are on one executor, and a key of iWARP's is revoked at once: what is posted in the same turn comes too
// late.
class late_accesses : public rails {
 protected:
  static void expect_late(const std::optional<error>& what, const char* words) {
    EXPECT_TRUE(failed_with(what, errc::remote_access, words));
    EXPECT_TRUE(failed_with(what, errc::remote_access, "the connection goes on"));
  }
  // Everything that a connection does, in both directions.
  task<> expect_alive(ends both, const net::exposure& target, unsigned seed) {
    auto source = co_await filled(mebibyte, seed);
    co_await both.client.write(source, target.remote().slice(0, mebibyte));
    EXPECT_TRUE(holds(target.memory().bytes().first(mebibyte), seed));
    for (net::connection* from : {&both.client, &both.server}) {
      net::connection& to = from == &both.client ? both.server : both.client;
      co_await from->send(source.slice(0, 100));
      const auto message = co_await to.recv_or_throw();
      EXPECT_TRUE(message.size() == 100 && holds(message.bytes(), seed));
    }
  }
};

TEST_F_BETWEEN_ENDS(late_accesses, cost_nothing_but_themselves) {
  const auto target = co_await expose_zeros(both.server, 4 * mebibyte);
  for (unsigned round = 1; round <= 5; ++round) {
    SCOPED_TRACE(round);
    for (const auto& each : cables_) co_await until_spread_over(both.client, target, *each);
    auto lent = co_await expose_zeros(both.server, 1000);
    auto source = co_await filled(1000, round);
    co_await both.client.write(source, lent.remote());
    const mr::remote_region there = lent.remote();
    auto back = co_await lent.revoke();
    EXPECT_TRUE(holds(back.bytes(), round));
    std::fill(back.bytes().begin(), back.bytes().end(), std::byte{0});
    std::array all{both.client.write(source, target.remote().slice(0, 1000)), both.client.write(source, there),
                   both.client.write(source, target.remote().slice(5000, 1000))};
    static_cast<void>(co_await failure_of(both.client.batch(all)));
    EXPECT_FALSE(all[0].failure() || all[2].failure());
    expect_late(all[1].failure(), "taken the memory back");
    EXPECT_TRUE(holds(target.memory().bytes().first(1000), round));
    EXPECT_TRUE(holds(target.memory().bytes().subspan(5000, 1000), round));
    EXPECT_EQ(std::count(back.bytes().begin(), back.bytes().end(), std::byte{0}), 1000);
    EXPECT_EQ(both.server.statistics().late_accesses, round);
    co_await expect_alive(both, target, round);
  }
  EXPECT_GT(messages().made + other().made, 4u);
}

TEST_F_BETWEEN_ENDS(late_accesses, are_not_made_once_the_peer_has_said_that_the_memory_is_its_own) {
  const auto target = co_await spread_target(both, mebibyte);
  const std::size_t made = messages().made + other().made;
  auto lent = co_await expose_zeros(both.server, 1000);
  const mr::remote_region there = lent.remote();
  static_cast<void>(co_await lent.revoke());
  co_await expect_alive(both, target, 1);
  auto source = co_await filled(1000, 2);
  const auto write = co_await failure_of(both.client.write(source, there));
  expect_late(write, "taken the memory back");
  const auto read = co_await failure_of(both.client.read(source, there));
  expect_late(read, "taken the memory back");
  co_await expect_alive(both, target, 3);
  EXPECT_EQ(messages().made + other().made, made);
  EXPECT_EQ(both.server.statistics().late_accesses, 0u);
}

TEST_F(late_accesses, to_memory_that_was_lent_until_a_time_say_so) {
  manual_clock time(manual_clock::between_moves::goes);
  executor home({.clock = &time});
  const auto script = [&](ends both) -> task<> {
    const auto target = co_await spread_target(both, mebibyte);
    auto memory = co_await pool().allocate(1000);
    constexpr auto a_while = 9s;  // less than dead_peer_after
    auto lent = co_await both.server.expose(std::move(memory), open_wide, {.until = time.now() + a_while});
    auto source = co_await filled(1000, 2);
    co_await both.client.write(source, lent.remote());
    time.advance(a_while);
    EXPECT_EQ(co_await lent.ended(), net::exposure_end::deadline);
    const auto write = co_await failure_of(both.client.write(source, lent.remote()));
    expect_late(write, "the deadline of the peer's exposure has passed");
    co_await expect_alive(both, target, 3);
  };
  between_ends_on(home, script);
}

// Each of two rails ends as the client is about to say over it which access was refused.
TEST_F_BETWEEN_ENDS(late_accesses, are_explained_although_their_rail_has_ended_again_meanwhile, forever) {
  const auto target = co_await spread_target(both, mebibyte);
  auto lent = co_await expose_zeros(both.server, 1000);
  const mr::remote_region there = lent.remote();
  auto source = co_await filled(1000, 1);
  messages().is_cut_before = [](const net::work_request& work) {
    return says(work, net::rails::control_kind::refused);
  };
  other().is_cut_before = [&](const net::work_request& work) {
    other().is_down = other().is_down || says(work, net::rails::control_kind::refused);
    return other().is_down;
  };
  static_cast<void>(co_await lent.revoke());
  const auto write = co_await failure_of(both.client.write(source, there));
  expect_late(write, "taken the memory back");
  // Where the owner has said so first, there was nothing to tell, and both cables are whole.
  messages().is_cut_before = other().is_cut_before = nullptr;
  other().is_down = false;
  co_await expect_alive(both, target, 2);
  EXPECT_EQ(both.server.statistics().late_accesses, 1u);
}

TEST_F(late_accesses, that_read_or_change_memory_are_known_not_to_have_happened) {
  for (const bool is_hidden : {false, true}) {
    SCOPED_TRACE(is_hidden);
    between_ends([&](ends both) -> task<> {
      for (const auto& each : cables_) each->hides_refused_keys = is_hidden;
      const auto target = co_await expose_zeros(both.server, mebibyte);
      for (const bool reads : {true, false}) {
        for (const auto& each : cables_) co_await until_spread_over(both.client, target, *each);
        auto lent = co_await expose_zeros(both.server, 8);
        auto sink = co_await filled(8, 2);
        EXPECT_EQ(co_await both.client.fetch_add(lent.remote(), 0), 0u);
        const mr::remote_region there = lent.remote();
        const auto back = co_await lent.revoke();
        auto attempted =
            reads ? failure_of(both.client.read(sink, there)) : failure_of(both.client.fetch_add(there, 1));
        const auto late = co_await std::move(attempted);
        expect_late(late, "taken the memory back");
        EXPECT_TRUE(holds(sink.bytes(), 2));
        EXPECT_EQ(back.bytes()[0], std::byte{0});
        co_await expect_alive(both, target, 3);
        EXPECT_EQ(both.server.statistics().late_accesses, reads ? 1u : 2u);
      }
      for (const auto& each : cables_) each->hides_refused_keys = false;
    });
  }
}

// Over the other rail the peer says that it gives up the one on which the refusal is.
TEST_F(late_accesses, that_change_memory_are_known_not_to_have_happened_although_their_rail_is_given_up_before) {
  using net::rails::control_kind;
  std::set<tardy_link*> links;
  bool is_tardy = true;
  messages().covers = [&](std::unique_ptr<net::link> made) {
    return std::make_unique<tardy_link>(std::move(made), links, is_tardy);
  };
  other().covers = [&](std::unique_ptr<net::link> made) {
    return std::make_unique<overheard_link>(std::move(made), [&](const net::rails::control& said) {
      if (said.kind != control_kind::fence || said.rail != 0) return;
      is_tardy = false;
      const std::set<tardy_link*> ended = links;
      for (tardy_link* each : ended) {
        if (links.contains(each)) each->go_on();
      }
    });
  };
  between_ends([&](ends both) -> task<> {
    const auto target = co_await spread_target(both, mebibyte);
    auto lent = co_await expose_zeros(both.server, 8);
    EXPECT_EQ(co_await both.client.fetch_add(lent.remote(), 0), 0u);
    const mr::remote_region there = lent.remote();
    const auto back = co_await lent.revoke();
    auto adding = both.client.fetch_add(there, 1);
    expect_late(co_await failure_of(std::move(adding)), "taken the memory back");
    EXPECT_FALSE(is_tardy);
    co_await expect_alive(both, target, 1);
  });
}

// All rails may be refused at once, and come back without resume_within.
TEST_F(late_accesses, by_a_large_transfer_that_goes_over_all_rails) {
  for (const unsigned turns : {0u, 1u, 5u}) {
    SCOPED_TRACE(turns);
    between_ends([&](ends both) -> task<> {
      const auto target = co_await expose_zeros(both.server, mebibyte);
      for (const auto& each : cables_) co_await until_spread_over(both.client, target, *each);
      auto lent = co_await expose_zeros(both.server, 8 * mebibyte);
      for (const auto& each : cables_) co_await until_spread_over(both.client, lent, *each);
      auto source = co_await filled(8 * mebibyte, 1);
      const mr::remote_region there = lent.remote();
      const std::uint64_t before = messages().moved + other().moved;
      const auto writing = [&]() -> task<> {
        const auto late = co_await failure_of(both.client.write(source, there));
        if (turns == 0 || late) expect_late(late, "taken the memory back");
      };
      const auto taking_back = [&]() -> task<> {
        while (messages().moved + other().moved == before) co_await yield();
        for (unsigned i = 0; i < turns; ++i) co_await yield();
        auto back = co_await lent.revoke();
        std::fill(back.bytes().begin(), back.bytes().end(), std::byte{0});
        co_await expect_alive(both, target, 2);
        const auto zeros = std::count(back.bytes().begin(), back.bytes().end(), std::byte{0});
        EXPECT_EQ(static_cast<std::size_t>(zeros), back.size());
      };
      co_await when_all(writing(), taking_back());
      co_await expect_alive(both, target, 3);
    });
  }
}

TEST_F_BETWEEN_ENDS(late_accesses, of_many_kinds_between_messages_leave_these_in_their_order) {
  const auto target = co_await expose_zeros(both.server, mebibyte);
  constexpr std::uint32_t count = 30;
  const auto sending = [&]() -> task<> {
    for (std::uint32_t i = 0; i < count; ++i) {
      co_await send_number(both.client, i);
      auto lent = co_await expose_zeros(both.server, 64);
      auto memory = co_await filled(64, i);
      co_await both.client.write(memory, lent.remote());
      const mr::remote_region there = lent.remote();
      static_cast<void>(co_await lent.revoke());
      auto attempted = i % 2 == 0 ? both.client.write(memory, there) : both.client.read(memory, there);
      const auto late = co_await failure_of(std::move(attempted));
      expect_late(late, "taken the memory back");
    }
  };
  co_await when_all(sending(), expect_numbers(both.server, count));
  co_await expect_alive(both, target, 1);
}

// A key that was never given is no late one, and neither is more than was given.
TEST_F(late_accesses, are_told_from_guesses_which_end_the_connection) {
  for (const bool guesses : {true, false}) {
    SCOPED_TRACE(guesses);
    between_ends([&](ends both) -> task<> {
      auto once = co_await expose_zeros(both.server, 100);
      static_cast<void>(co_await once.revoke());  // which excuses nothing
      auto memory = co_await filled(100, 0);
      const auto open = co_await both.server.expose(std::move(memory), mr::usage::read_src);
      const mr::remote_region forged =
          guesses ? mr::remote_region(0x1234567, 0, 100, open_wide)
                  : mr::remote_region(open.remote().key(), open.remote().address(), 100, open_wide);
      auto source = co_await filled(100, 1);
      static_cast<void>(co_await failure_of(both.client.write(source, forged)));
      EXPECT_TRUE(failed_with(co_await failure_of(both.client.recv_or_throw()), errc::remote_access));
      EXPECT_TRUE(failed_with(co_await failure_of(both.server.recv_or_throw()), errc::protocol_error));
      EXPECT_EQ(both.server.statistics().late_accesses, 0u);
      EXPECT_TRUE(holds(open.memory().bytes(), 0));
    });
  }
}

// ---- all of them lost ----

TEST_F(rails, a_connection_that_has_lost_all_of_them_goes_on_where_it_was) {
  for (const unsigned slice : {1u, 5u, 12u}) {
    SCOPED_TRACE(slice);
    const auto script = [&](ends both) -> task<> {
      const auto target = co_await spread_target(both, 4 * mebibyte);
      auto source = co_await filled(4 * mebibyte, slice);
      unsigned seen = 0;
      bool is_pulled = false;
      for (const auto& each : cables_) {
        each->is_cut_before = [&](const net::work_request& work) {
          if (work.kind == net::work_kind::write) is_pulled = ++seen >= slice || is_pulled;
          return is_pulled;
        };
      }
      const auto sending = [&]() -> task<> {
        co_await both.client.write(source, target.remote());
        co_await both.client.send(co_await filled(100, 1));
      };
      const auto receiving = [&]() -> task<> {
        EXPECT_TRUE(holds((co_await both.server.recv_or_throw()).bytes(), 1));
        EXPECT_TRUE(holds(target.memory().bytes(), slice));
      };
      co_await when_all(sending(), receiving());
      EXPECT_TRUE(is_pulled);
      co_await until_spread_over(both.client, target, other());
      co_await until_spread_over(both.client, target, messages());
    };
    between_ends(script, forever);
  }
}

TEST_F_BETWEEN_ENDS(rails, messages_of_which_the_peer_has_said_nothing_when_the_next_rail_ends_come_once, forever) {
  const auto target = co_await spread_target(both, mebibyte);
  messages().loses_sends = true;
  constexpr unsigned count = 5;
  for (unsigned i = 0; i < count; ++i) {
    co_await both.client.send(co_await filled(100, i));
  }
  messages().loses_sends = false;
  for (const auto& each : cables_) each->cut();
  for (unsigned i = 0; i < count; ++i) {
    EXPECT_TRUE(holds((co_await both.server.recv_or_throw()).bytes(), i));
  }
  for (const auto& each : cables_) co_await until_spread_over(both.client, target, *each);
}

// The second ends before the peer has the answer to the fence of the first, which then asks for that again.
TEST_F(rails, receives_of_one_that_is_lost_while_another_is_being_fenced_are_used_again) {
  using net::rails::control_kind;
  std::set<slow_link*> links;
  bool is_slow = false;
  unsigned fences = 0;
  other().covers = [&](std::unique_ptr<net::link> made) {
    return std::make_unique<slow_link>(std::move(made), links, is_slow);
  };
  messages().covers = [&](std::unique_ptr<net::link> made) {
    return std::make_unique<overheard_link>(std::move(made), [&](const net::rails::control& said) {
      if (said.kind == control_kind::fence && said.rail == 1) ++fences;
    });
  };
  const auto script = [&](ends both) -> task<> {
    const auto target = co_await spread_target(both, mebibyte);
    is_slow = true;
    messages().is_down = true;
    other().is_cut_before = [&](const net::work_request& work) {
      if (!says(work, control_kind::fenced)) return false;
      messages().is_down = false;
      return true;
    };
    messages().cut();
    while (fences < 2) co_await yield();
    is_slow = false;
    const std::set<slow_link*> ended = links;
    for (slow_link* each : ended) {
      if (links.contains(each)) each->go_on();
    }
    constexpr std::uint32_t count = 12;  // more than are held for control messages
    for (net::connection* from : {&both.client, &both.server}) {
      for (std::uint32_t i = 0; i < count; ++i) co_await send_number(*from, i);
      co_await expect_numbers(from == &both.client ? both.server : both.client, count);
    }
  };
  between_ends(script, forever);
}

TEST_F_BETWEEN_ENDS(rails, memory_is_exposed_while_none_is_there, forever) {
  const auto before = co_await spread_target(both, mebibyte);
  pull_both();
  std::optional<net::exposure> open;
  const auto exposing = [&]() -> task<> { open = co_await expose_zeros(both.server, 100); };
  const auto mending = [&]() -> task<> {
    for (unsigned turns = 0; turns < 10; ++turns) co_await yield();
    EXPECT_FALSE(open.has_value());
    mend_both();
  };
  co_await when_all(exposing(), mending());
  for (const net::exposure* each : {&before, &std::as_const(*open)}) {
    co_await both.client.write(co_await filled(100, 3), each->remote().slice(0, 100));
    EXPECT_TRUE(holds(each->memory().bytes().first(100), 3));
  }
}

TEST_F(rails, a_connection_without_any_ends_after_the_time_that_it_was_given) {
  for (const auto within : {0ms, 50ms}) {
    const auto script = [&](ends both) -> task<> {
      const auto target = co_await spread_target(both, mebibyte);
      pull_both();
      const auto use = [&]() -> task<> {
        co_await both.client.send(co_await filled(100, 3));
        static_cast<void>(co_await both.client.recv_or_throw());
      };
      const std::string words = co_await words_of(use());
      EXPECT_EQ(words.find("no rail has come back within 50 ms") != std::string::npos, within != 0ms) << words;
      EXPECT_NE(words, "");
      mend_both();
    };
    between_ends(script, within);
  }
}

// Of a process that was killed, the system closes each socket in order.
TEST_F_BETWEEN_ENDS(rails, a_peer_that_has_not_said_that_it_closes_has_vanished_however_its_rails_have_ended, 0ms) {
  const auto target = co_await spread_target(both, mebibyte);
  for (const auto& each : cables_) each->is_down = true;
  for (cable* each : {&other(), &messages()}) {
    each->end_in_order();
    const auto is_there = [](const net::rail_statistics& rail) { return rail.state == net::rail_state::ending; };
    while (!each->links.empty() || std::ranges::any_of(both.client.rails(), is_there)) co_await yield();
    for (int turns = 0; turns != 100; ++turns) co_await yield();  // what the ends say to each other about it
  }
  for (net::connection* each : {&both.client, &both.server}) {
    EXPECT_EQ(co_await code_of(each->recv()), errc::peer_vanished);
  }
  mend_both();
}

TEST_F_BETWEEN_ENDS(rails, a_peer_that_knows_the_connection_no_more_has_restarted, forever) {
  const auto target = co_await spread_target(both, mebibyte);
  both.server.abort();
  auto source = co_await filled(100, 3);
  EXPECT_EQ(co_await code_of(both.client.write(source, target.remote().slice(0, 100))), errc::peer_restarted);
}

TEST_F(rails, a_connection_comes_about_although_the_first_address_is_silent) {
  manual_clock time(manual_clock::between_moves::goes);
  const auto body = [&]() -> task<> {
    const net::connection_options how{.set_up_timeout = 200s};
    auto device = net::device::open("iwarp+iwarp");
    auto silent = co_await net::stream_listener::listen(device, "tcp://127.0.0.1:0");
    std::optional<net::stream_request> taken;
    const auto stay_silent = [&]() -> task<> {
      taken = co_await silent.next();
      time.advance(101s);  // its share of the time, and not the other's
    };
    net::listener listener = co_await device.listen("127.0.0.1:0");
    const std::string addresses =
        std::string(silent.address()).substr(std::string_view("tcp://").size()) + "+" + std::string(listener.address());
    auto both = co_await when_all(device.connect(addresses, how), accept_one(listener, how), stay_silent());
    co_await std::get<0>(both).send(co_await test::filled(device.pool(), 10, 1));
    EXPECT_TRUE(holds((co_await std::get<1>(both).recv_or_throw()).bytes(), 1));
  };
  executor home({.clock = &time});
  home.run(with_timeout(forever, body()));
}

// The connecting end goes over its second fabric; each fabric has keys of its own.
TEST_F(rails, memory_is_exposed_on_a_connection_whose_first_link_is_not_over_the_first_fabric) {
  const auto body = [&]() -> task<> {
    std::vector<std::unique_ptr<net::transport>> ways;
    for (const auto& each : cables_) {
      ways.push_back(std::make_unique<breakable_transport>("iwarp:" + std::to_string(ways.size()), each,
                                                           net::iwarp::open_transport({.checksum = false})));
    }
    net::device device = net::device::open(net::rails::open_transport(std::move(ways)), {});
    messages().is_down = true;
    const auto script = [&](ends both) -> task<> {
      for (net::connection* from : {&both.client, &both.server}) {
        net::connection& to = from == &both.client ? both.server : both.client;
        const auto target = co_await test::expose_zeros(device.pool(), to, 100);
        co_await from->write(co_await test::filled(device.pool(), 100, 1), target.remote());
        co_await from->flush(target.remote().slice(0, 1));
        EXPECT_TRUE(holds(target.memory().bytes(), 1));
      }
    };
    const net::connection_options how;
    co_await with_ends(device, device, two_ports(), how, script);
  };
  executor home;
  home.run(with_timeout(forever, body()));
}

TEST_F(rails, a_device_has_them_by_name) {
  const auto body = []() -> task<> {
    const net::connection_options how;
    for (const char* name : {"iwarp+iwarp", "shm,iwarp+iwarp"}) {
      auto device = net::device::open(name);
      EXPECT_EQ(device.name(), name);
      net::listener listener = co_await device.listen("127.0.0.1:0+127.0.0.1:0");
      auto both = co_await when_all(device.connect(std::string(listener.address())), accept_one(listener, how));
      EXPECT_EQ(std::get<0>(both).fabric(), "iwarp+iwarp");
    }
  };
  executor home;
  home.run(with_timeout(forever, body()));
  const auto refused = [](const char* name) {
    return words_thrown_by([&] { static_cast<void>(net::device::open(name)); });
  };
  EXPECT_NE(refused("iwarp+shm").find("shm cannot be a rail"), std::string::npos) << refused("iwarp+shm");
  EXPECT_NE(refused("iwarp+").find("unknown"), std::string::npos) << refused("iwarp+");
  EXPECT_NE(refused("iwarp+iwarp+iwarp+iwarp+iwarp").find("1 to 4 rails"), std::string::npos)
      << refused("iwarp+iwarp+iwarp+iwarp+iwarp");
}

}  // namespace
}  // namespace weft::test
