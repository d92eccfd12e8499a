// SPDX-License-Identifier: Apache-2.0
// How long the traffic of a connection of two rails stands still when one of them falls silent, in virtual time.
#include <weft/net/iwarp/transport.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/weft.hpp>

#include "kit/buffers.hpp"
#include "kit/test.hpp"
#include "unit/sanitized.hpp"
#include "world.hpp"

namespace weft::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::uint16_t first_cable = 7471;
constexpr std::size_t mebibyte = std::size_t{1} << 20;

enum class traffic : std::uint8_t { writes, reads, messages, large_writes };

// Between two machines of one data centre.
constexpr conditions quick_network{.longest_delay_ns = 50'000, .socket_bytes = mebibyte, .packet_bytes = 65'536};

class two_rails {
 public:
  explicit two_rails(std::uint64_t seed) : place_(seed, quick_network), device_(open()) {}

  /// The longest that an operation takes, from when that rail is silent on.
  duration longest_pause(traffic what, std::uint16_t silent) {
    place_.give_up = [](const std::string& why) { ADD_FAILURE() << why; };
    executor home(place_.options(false));
    home.run(talk(what, silent));
    return longest_;
  }

 private:
  net::device open() {
    const auto domain = std::make_shared<net::software::domain>(place_, "iwarp");
    std::vector<std::unique_ptr<net::transport>> ways;
    for (int i = 0; i < 2; ++i) ways.push_back(net::iwarp::open_transport({}, domain));
    const net::device_options options{.pool = {.huge_pages = false, .system_calls = &place_}};
    return net::device::open(net::rails::open_transport(std::move(ways)), options);
  }

  task<> talk(traffic what, std::uint16_t silent) {
    net::listener listener = co_await device_.listen("127.0.0.1:7471+127.0.0.1:7472");
    auto both = co_await when_all(device_.connect(std::string(listener.address())), listener.accept());
    net::connection client = std::move(std::get<0>(both));
    net::connection server = std::move(std::get<1>(both)).value();
    auto memory = co_await device_.pool().allocate(mebibyte, mr::budget::receive);
    const auto target = co_await server.expose(std::move(memory), mr::usage::write_dst | mr::usage::read_src);
    co_await sleep_for(500ms);
    const auto all = [&](scope& tasks) -> task<> {
      tasks.spawn(receive(server));
      const duration start = place_.elapsed();
      const duration falls_silent = start + 20ms + std::chrono::microseconds(place_.dice().below(60'000));
      place_.at(falls_silent, [this, silent] { place_.cut_cable(static_cast<std::uint16_t>(first_cable + silent)); });
      for (duration last = start; last < falls_silent + 300ms; last = place_.elapsed()) {
        co_await once(what, client, target.remote());
        const duration now = place_.elapsed();
        longest_ = std::max(longest_, now - std::max(last, std::min(now, falls_silent)));
        co_await sleep_for(what == traffic::large_writes ? 10ms : 1ms);
      }
      tasks.request_stop();
    };
    co_await with_scope(on_failure::report, all);
    client.abort();
    server.abort();
  }

  static task<> receive(net::connection& at) {
    for (;;) {
      auto next = co_await at.recv();
      if (!next) co_return;
    }
  }

  task<> once(traffic what, net::connection& client, mr::remote_region target) {
    const std::size_t bytes = what == traffic::large_writes ? mebibyte : 4096;
    auto memory = co_await test::filled_with(device_.pool(), what == traffic::messages ? 1000 : bytes, std::byte{7});
    if (what == traffic::messages) {
      co_await client.send(std::move(memory));
    } else if (what == traffic::reads) {
      co_await client.read(memory, target.slice(0, bytes));
    } else {
      co_await client.write(memory, target.slice(0, bytes));
    }
  }

  world place_;
  net::device device_;
  duration longest_{};
};

TEST(silence, of_one_rail_of_two_holds_traffic_up_for_no_more_than_100_ms) {
  const std::uint64_t seeds = test::sanitized ? 3 : 6;
  for (const traffic what : {traffic::writes, traffic::reads, traffic::messages, traffic::large_writes}) {
    for (const std::uint16_t silent : {std::uint16_t{0}, std::uint16_t{1}}) {
      for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        SCOPED_TRACE(testing::Message() << "traffic " << static_cast<int>(what) << ", rail " << silent << ", seed "
                                        << seed);
        two_rails both(seed);
        const duration pause = both.longest_pause(what, silent);
        EXPECT_LE(pause, 100ms) << std::chrono::duration_cast<std::chrono::microseconds>(pause).count() << " us";
      }
    }
  }
}

}  // namespace
}  // namespace weft::sim
