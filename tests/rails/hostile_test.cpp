// SPDX-License-Identifier: Apache-2.0
// A peer that says what it likes about the rails of a connection costs nobody more than that connection.
#include <weft/net/rails/handles.hpp>

#include "ends.hpp"
#include "kit/failure.hpp"
#include "kit/test.hpp"
#include "lying_link.hpp"
#include "sanitized.hpp"

namespace weft::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t exposed_bytes = std::size_t{512} << 10;  // enough to be spread
constexpr std::byte untouched{0x5a};

// A device that tells the truth, and one that does not.
class hostile_rails : public testing::Test {
 protected:
  struct both_ends {
    net::connection victim;
    net::connection liar;
  };

  task<both_ends> connect(bool victim_listens, std::chrono::milliseconds resume_within = 0ms) {
    const net::connection_options how{.close_timeout = 100ms, .resume_within = resume_within};
    net::device& at = victim_listens ? victims_ : liars_;
    net::listener listener = co_await at.listen(two_ports());
    auto connecting = (victim_listens ? liars_ : victims_).connect(std::string(listener.address()), how);
    auto both = co_await when_all(std::move(connecting), accept_one(listener, how));
    net::connection& connected = std::get<0>(both);
    net::connection& accepted = std::get<1>(both);
    listeners_.push_back(std::move(listener));
    co_return victim_listens ? both_ends{std::move(accepted), std::move(connected)}
                             : both_ends{std::move(connected), std::move(accepted)};
  }
  void lies_by(liar& who) {
    for (const auto& each : lying_) {
      each->covers = [&who](std::unique_ptr<net::link> made) {
        return std::make_unique<lying_link>(std::move(made), who);
      };
    }
  }
  // What either end does may fail, or come to nothing. It touches what was exposed and nothing else.
  static task<> use(net::device& of, net::connection& here, const mr::remote_region* there) {
    try {
      auto mine = co_await zeroed(of.pool(), exposed_bytes);
      auto note = co_await zeroed(of.pool(), 64);
      for (int i = 0; i < 4; ++i) {
        if (there != nullptr) co_await here.write(mine, *there);
        co_await here.send(note);
        static_cast<void>(co_await here.recv());
      }
    } catch (const error&) {
    }
  }
  void expect_refused(net::rails::control_kind of_what_repeats) {
    liar who(1);
    who.repeats = of_what_repeats;
    who.changes_one_in = 0;
    lies_by(who);
    const auto body = [&]() -> task<> {
      both_ends both = co_await connect(true);
      auto receiving = [&]() -> task<> { static_cast<void>(co_await both.victim.recv()); };
      EXPECT_EQ(co_await code_of(receiving()), errc::protocol_error);
    };
    home_.run(with_timeout(forever, body()));
    listeners_.clear();
  }
  task<> play(both_ends& both) {
    auto target = co_await victims_.pool().allocate(exposed_bytes, mr::budget::receive);
    auto beside = co_await victims_.pool().allocate(exposed_bytes, mr::budget::receive);
    std::ranges::fill(beside.bytes(), untouched);
    try {
      auto open = co_await both.victim.expose(std::move(target), mr::usage::write_dst);
      const mr::remote_region there = open.remote();
      co_await with_timeout(100ms, when_all(use(victims_, both.victim, nullptr), use(liars_, both.liar, &there)));
      target = co_await open.revoke();
    } catch (const error&) {
    }
    EXPECT_TRUE(std::ranges::all_of(beside.bytes(), [](std::byte each) { return each == untouched; }));
  }

  const two_cables honest_{std::make_shared<cable>(), std::make_shared<cable>()};
  const two_cables lying_{std::make_shared<cable>(), std::make_shared<cable>()};
  net::device victims_ = open_rails(honest_);
  net::device liars_ = open_rails(lying_);
  std::vector<net::listener> listeners_;
  executor home_;
};

TEST_F(hostile_rails, lies_about_rails_cost_a_connection_at_most) {
  constexpr unsigned programs = sanitized ? 60 : 300;
  std::size_t told = 0;
  for (unsigned seed = 1; seed <= programs && !HasFailure(); ++seed) {
    liar who(seed);
    lies_by(who);
    const auto body = [&]() -> task<> {
      std::optional<both_ends> both;
      try {
        both.emplace(co_await connect(seed % 2 == 0, seed % 3 == 0 ? 50ms : 0ms));
      } catch (const error&) {
        co_return;  // an end that was lied to in the first words
      }
      co_await play(*both);
    };
    home_.run(with_timeout(forever, body()));
    listeners_.clear();
    told += who.told;
    EXPECT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(told, programs);
  // The others are none the worse for it.
  for (const auto& each : lying_) each->covers = nullptr;
  const auto after = [&]() -> task<> {
    both_ends both = co_await connect(true);
    auto note = co_await zeroed(liars_.pool(), 64);
    co_await both.liar.send(note);
    static_cast<void>(co_await both.victim.recv_or_throw());
  };
  home_.run(with_timeout(forever, after()));
  listeners_.clear();
}

TEST_F(hostile_rails, a_peer_that_asks_on_and_on_and_confirms_no_answer_is_refused) {
  expect_refused(net::rails::control_kind::confirm);
}

TEST_F(hostile_rails, a_peer_that_greets_on_and_on_is_refused) { expect_refused(net::rails::control_kind::hello); }

TEST(peer_memory, takes_any_places_and_no_more_of_them_than_it_may) {
  net::rails::peer_memory known(3);
  const auto exposed = [](std::uint32_t place) {
    return net::rails::control{.kind = net::rails::control_kind::exposed, .number = net::rails::handle_bit | place};
  };
  for (const std::uint32_t place : {7u, 70'000u, UINT32_MAX}) EXPECT_TRUE(known.learn(exposed(place))) << place;
  EXPECT_TRUE(known.learn(exposed(7)));
  EXPECT_FALSE(known.learn(exposed(8)));
  known.withdraw(exposed(70'000).number, false);
  EXPECT_TRUE(known.learn(exposed(8)));
  EXPECT_NE(known.find(exposed(UINT32_MAX).number, 0, 0), nullptr);
  EXPECT_EQ(known.find(exposed(70'000).number, 0, 0), nullptr);
}

}  // namespace
}  // namespace weft::test
