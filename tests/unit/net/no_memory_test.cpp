// SPDX-License-Identifier: Apache-2.0
// What becomes of connections over each transport when there is no memory: each allocation fails in turn, and some of
// those that follow.
#include <weft/mr/porting/porting.hpp>
#include <weft/net/iwarp/transport.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/weft.hpp>

#include <tuple>

#include "../../rails/breakable.hpp"
#include "failing_calls.hpp"
#include "kit/descriptors.hpp"
#include "kit/test.hpp"
#include "sanitized.hpp"

namespace weft::net {
namespace {

constexpr std::array refusing{std::byte{1}};

// What an operation or a connection may say of itself or its peer's end; not that it was waited for in vain.
bool is_fair(const std::error_code& code) {
  static const std::set<int> fair{static_cast<int>(errc::no_memory),     static_cast<int>(errc::closed),
                                  static_cast<int>(errc::peer_closed),   static_cast<int>(errc::peer_vanished),
                                  static_cast<int>(errc::peer_rejected), static_cast<int>(errc::connection_failed),
                                  static_cast<int>(errc::canceled)};
  if (code.category() == weft_category()) return fair.contains(code.value());
  return code == std::errc::not_enough_memory || code == std::errc::connection_reset;
}

enum class fabric { iwarp, shm, rails, lost_rails, libfabric };

using cables = std::array<std::shared_ptr<test::cable>, 2>;

device open_device(fabric over, const device_options& options, const cables& all) {
  if (over == fabric::iwarp) return device::open("iwarp", options);
  if (over == fabric::shm) return device::open("shm", options);
  if (over == fabric::libfabric) return device::open("fabric:net", options);
  const auto memory = std::make_shared<software::domain>(system_calls::kernel(), "iwarp");
  std::vector<std::unique_ptr<transport>> ways;
  for (const auto& each : all) {
    ways.push_back(iwarp::open_transport({}, memory));
    if (over == fabric::rails) continue;
    ways.back() = std::make_unique<test::breakable_transport>("iwarp", each, std::move(ways.back()));
  }
  return device::open(rails::open_transport(std::move(ways)), options);
}

/// Echoes, connections that are closed, dropped, aborted and refused, between two ends on one executor.
class neighbours {
 public:
  neighbours(device& both, fabric over, const cables& between) noexcept
      : device_(both), over_(over), cables_(between) {}

  task<> meet() {
    const bool has_rails = over_ == fabric::rails || over_ == fabric::lost_rails;
    auto listener = co_await device_.listen(has_rails ? "127.0.0.1:0+127.0.0.1:0" : "127.0.0.1:0");
    const auto both = [&](scope& all) -> task<> {
      all.spawn(serve(listener));
      co_await tolerate(call(std::string(listener.address())));
      listener.close();
    };
    co_await with_scope(on_failure::stop_siblings, both);
  }

  /// What those that connect have done as they should.
  [[nodiscard]] int successes() const noexcept { return successes_; }
  [[nodiscard]] int most_successes() const noexcept {
    if (over_ == fabric::lost_rails) return 1;
    return shares_receives() ? 7 : 6;
  }

 private:
  /// Fails in ways that are fair.
  task<> tolerate(task<> what) {
    try {
      co_await std::move(what);
    } catch (const error& why) {
      EXPECT_TRUE(is_fair(why.code())) << why.what();
    } catch (const std::bad_alloc&) {
    }
  }

  task<> serve(listener& source) {
    const auto body = [&](scope& peers) -> task<> {
      for (;;) {
        try {
          auto request = co_await source.next();
          if (!request) break;
          peers.spawn(tolerate(answer(*std::move(request))));
        } catch (const std::bad_alloc&) {  // there are others
        }
      }
    };
    for (bool ended = false; !ended;) {
      try {
        co_await with_scope(on_failure::stop_siblings, body);
        ended = true;
      } catch (const std::bad_alloc&) {  // as above
      }
    }
  }

  task<> answer(connection_request request) {
    const auto said = request.private_data();
    if (!said.empty() && said.front() == refusing.front()) co_return co_await request.reject();
    auto peer = co_await request.accept();
    while (auto message = co_await peer.recv()) co_await peer.send(std::move(message->payload));
    co_await peer.close();
  }

  task<> talk(connection& with, std::size_t bytes) {
    for (int i = 0; i < 3; ++i) {
      auto question = co_await device_.pool().allocate(bytes);
      std::memset(question.data(), i, bytes);
      co_await with.send(std::move(question));
      const auto answer = co_await with.recv_or_throw();
      EXPECT_EQ(answer.size(), bytes);
      EXPECT_EQ(answer.bytes().front(), static_cast<std::byte>(i));
    }
  }

  task<> close_one(std::string address) {
    auto peer = co_await device_.connect(address);
    co_await talk(peer, 4000);
    co_await peer.close();
    ++successes_;
  }

  task<> drop_one(std::string address) {
    auto peer = co_await device_.connect(address);
    co_await talk(peer, 10);
    ++successes_;
  }

  task<> abort_one(std::string address) {
    auto peer = co_await device_.connect(address);
    co_await talk(peer, 10);
    peer.abort();
    try {
      static_cast<void>(co_await peer.recv());
      ADD_FAILURE() << "a message came after an abort";
    } catch (const error& why) {
      EXPECT_TRUE(is_fair(why.code())) << why.what();
      ++successes_;
    }
  }

  task<> be_refused(std::string address) {
    const connection_options asking{.private_data = refusing};
    try {
      const auto peer = co_await device_.connect(address, asking);
      ADD_FAILURE() << "it was not refused";
    } catch (const error& why) {
      EXPECT_TRUE(is_fair(why.code())) << why.what();
      if (why.code() == errc::peer_rejected) ++successes_;
    }
  }

  // The second one joins where the first may have left too few receives.
  task<> share_receives(std::string address) {
    shared_receives both = co_await device_.share_receives({.receive_size = 64, .depth = 4});
    const connection_options sharing{.receives = &both};
    auto first = co_await device_.connect(address, sharing);
    co_await talk(first, 10);
    auto second = co_await device_.connect(address, sharing);
    co_await talk(second, 10);
    co_await second.close();
    co_await first.close();
    ++successes_;
  }

  // Over rails the peer has to be told.
  task<> count_writes(std::string address) {
    auto peer = co_await device_.connect(address);
    const mr::porting::write_counter counter;
    mr::region there = co_await device_.domain().register_memory(
        std::vector<std::byte>(64), {.usage = mr::usage::write_dst | mr::usage::read_src, .disabled = true});
    mr::porting::bind(there, counter);
    co_await mr::porting::enable(there);
    const auto source = co_await device_.pool().allocate(64);
    for (int i = 0; i < 3; ++i) co_await peer.write(source.slice(), there.remote());
    co_await peer.flush(there.remote());  // a peer that breaks off may have taken none of them
    co_await peer.close();
    EXPECT_EQ(counter.value(), 3U);
    ++successes_;
  }

  task<> move_lists(std::string address) {
    constexpr std::uint32_t blocks = 100;
    constexpr std::size_t block = 64;
    auto peer = co_await device_.connect(address);
    const mr::region there = co_await device_.domain().register_memory(
        std::vector<std::byte>(blocks * block), {.usage = mr::usage::write_dst | mr::usage::read_src});
    const mr::buffer source = co_await device_.pool().allocate(blocks * block);
    const mr::buffer target = co_await device_.pool().allocate(blocks * block);
    std::vector<block_pair> pairs(blocks);
    for (std::uint32_t i = 0; i != blocks; ++i) {
      std::memset(source.data() + i * block, static_cast<int>(i), block);
      pairs[i] = {.local = i, .remote = blocks - 1 - i};
    }
    const block_list out{.local = source.slice(), .remote = there.remote(), .block_bytes = block, .blocks = pairs};
    block_list back = out;
    back.local = target.slice();
    co_await peer.write(out);
    co_await peer.read(back);
    EXPECT_TRUE(std::ranges::equal(source.bytes(), target.bytes()));
    co_await peer.close();
    ++successes_;
  }

  // Messages move to the other rail, and the one that was lost is asked for again, as often as it takes. One that has
  // carried something is there at both ends.
  task<> lose_rails(std::string address) {
    constexpr std::size_t much = std::size_t{1} << 20;
    auto peer = co_await device_.connect(std::move(address));
    const mr::region there =
        co_await device_.domain().register_memory(std::vector<std::byte>(much), {.usage = mr::usage::write_dst});
    const mr::buffer source = co_await device_.pool().allocate(much);
    const time_point late = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (std::size_t round = 0; round != 2; ++round) {
      for (const auto& each : cables_) {
        for (const std::uint64_t before = each->moved; each->moved == before;) {
          if (std::chrono::steady_clock::now() > late) {
            ADD_FAILURE() << "a rail has not come back";
            co_return;
          }
          co_await peer.write(source.slice(), there.remote());
        }
      }
      cables_[round]->cut();
      co_await talk(peer, 10);
    }
    co_await peer.close();
    ++successes_;
  }

  task<> call(std::string address) {
    if (over_ == fabric::lost_rails) co_return co_await tolerate(lose_rails(std::move(address)));
    co_await tolerate(close_one(address));
    co_await tolerate(drop_one(address));
    co_await tolerate(abort_one(address));
    co_await tolerate(be_refused(address));
    co_await tolerate(count_writes(address));
    co_await tolerate(move_lists(address));
    if (shares_receives()) co_await tolerate(share_receives(address));
  }

  [[nodiscard]] bool shares_receives() const noexcept { return over_ == fabric::iwarp || over_ == fabric::shm; }

  device& device_;
  fabric over_;
  const cables& cables_;
  int successes_ = 0;
};

// False if no allocation was left to fail.
bool meet_while_some_fail(std::int64_t first, std::int64_t count, driver_choice driver, fabric over) {
  bool has_failed = false;
  // A thread of its own has no memory for frames in reserve.
  std::thread([&] {
    device_options options;
    options.pool.huge_pages = false;
    const cables between{std::make_shared<test::cable>(), std::make_shared<test::cable>()};
    auto both = open_device(over, options, between);
    int successes = 0;
    int most = 0;
    {
      executor home({.driver = driver});
      neighbours those(both, over, between);
      most = those.most_successes();
      auto meeting = those.meet();
      test::fail_call(first, count);
      try {
        home.run(std::move(meeting));
        successes = those.successes();
      } catch (const error& why) {
        EXPECT_TRUE(is_fair(why.code())) << why.what();
      } catch (const std::bad_alloc&) {
      }
      has_failed = test::call_has_failed();
      test::fail_call(0);
    }
    EXPECT_TRUE(has_failed || successes == most) << successes;
    const mr::pool_statistics pool = both.pool().statistics();
    EXPECT_EQ(pool.send.in_use_bytes + pool.receive.in_use_bytes, 0U);
    EXPECT_EQ(pool.send.waiting + pool.receive.waiting, 0U);
  }).join();
  return has_failed;
}

// Each allocation in builds without sanitizers, with which a round takes many times as long.
void meet_while_each_fails(driver_choice driver, std::int64_t count, fabric over) {
  constexpr std::int64_t step = test::sanitized ? 13 : 1;
  static_cast<void>(meet_while_some_fail(0, 0, driver, over));  // what is made once is there then
  const std::size_t descriptors = test::open_descriptors();
  std::int64_t failing = 1;
  for (; meet_while_some_fail(failing, count, driver, over) && !testing::Test::HasFailure(); failing += step) {
    EXPECT_EQ(test::open_descriptors(), descriptors) << failing;
  }
  if (failing == 1) GTEST_SKIP() << "this sanitizer has an allocator of its own";
  EXPECT_GT(failing, 100);
  EXPECT_FALSE(testing::Test::HasFailure()) << "allocation " << failing;
}

using circumstances = std::tuple<driver_choice, std::int64_t, fabric>;

class without_memory : public testing::TestWithParam<circumstances> {};

TEST_P(without_memory, connections_end_and_nothing_is_left) {
  const auto [driver, count, over] = GetParam();
  try {
    const executor probe({.driver = driver});
    if (over == fabric::libfabric) static_cast<void>(open_device(over, {}, {}));
  } catch (const error& why) {
    GTEST_SKIP() << why.what();
  }
  meet_while_each_fails(driver, count, over);
}

// So many allocations fail.
const auto drivers = testing::Values(driver_choice::epoll, driver_choice::io_uring);
INSTANTIATE_TEST_SUITE_P(over_iwarp, without_memory,
                         testing::Values(std::tuple(driver_choice::epoll, 1, fabric::iwarp),
                                         std::tuple(driver_choice::epoll, 5, fabric::iwarp),
                                         std::tuple(driver_choice::epoll, 1000, fabric::iwarp),
                                         std::tuple(driver_choice::io_uring, 1, fabric::iwarp)));
INSTANTIATE_TEST_SUITE_P(more_over_iwarp, without_memory,
                         testing::Combine(drivers, testing::Values(2, 5, 50, 1000), testing::Values(fabric::iwarp)));
INSTANTIATE_TEST_SUITE_P(over_shm, without_memory,
                         testing::Values(std::tuple(driver_choice::epoll, 1, fabric::shm),
                                         std::tuple(driver_choice::io_uring, 5, fabric::shm)));
INSTANTIATE_TEST_SUITE_P(more_over_shm, without_memory,
                         testing::Combine(drivers, testing::Values(1, 5), testing::Values(fabric::shm)));
INSTANTIATE_TEST_SUITE_P(over_rails, without_memory,
                         testing::Combine(drivers, testing::Values(1, 5), testing::Values(fabric::rails)));
INSTANTIATE_TEST_SUITE_P(over_rails_that_are_lost, without_memory,
                         testing::Values(std::tuple(driver_choice::epoll, 1, fabric::lost_rails)));
INSTANTIATE_TEST_SUITE_P(over_libfabric, without_memory,
                         testing::Combine(drivers, testing::Values(1), testing::Values(fabric::libfabric)));

}  // namespace
}  // namespace weft::net
