// SPDX-License-Identifier: Apache-2.0
// What GCC 12 destroys once: weft-check-coroutines finds nothing here. See docs/gcc-12.md.
#include <weft/weft.hpp>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

using namespace weft;

struct holder {
  int number = 0;
  mr::buffer memory;
};
class built {
 public:
  built(int number, mr::buffer memory);

 private:
  int number_;
  mr::buffer memory_;
};
struct counts {
  std::uint64_t sent = 0;
  std::optional<int> received;
  std::span<const std::byte> where;
};
struct options {
  counts limits;
  bool fast = false;
};

void take(holder given);
task<int> keep(holder given);
task<int> run(int number, options how);

task<holder> made_in_a_result(mr::pool& pool) {
  holder made{1, mr::buffer()};
  made.memory = co_await pool.allocate(100);
  co_return made;
}

task<> named_first(mr::pool& pool, std::map<int, holder>& table, std::vector<mr::buffer>& all, std::string name) {
  auto memory = co_await pool.allocate(100);
  holder made{1, std::move(memory)};
  take({2, std::move(made.memory)});
  holder argument{3, mr::buffer()};
  co_await keep(std::move(argument));
  table[1].memory = co_await pool.allocate(100);
  all.push_back(co_await pool.allocate(100));
  const auto length = [words = std::move(name)] { return words.size(); };
  co_await offload(length);
}

task<> constructors(mr::pool& pool) {
  built parentheses(1, co_await pool.allocate(100));
  built braces{1, co_await pool.allocate(100)};
  std::optional<mr::buffer> maybe{co_await pool.allocate(100)};
  std::pair<int, mr::buffer> both{1, co_await pool.allocate(100)};
  auto memory{co_await pool.allocate(100)};
  mr::buffer plain = co_await pool.allocate(100);
  std::tuple<int, mr::buffer> all(1, co_await pool.allocate(100));
}

task<> without_destructors(net::connection& peer, net::device& device, mr::remote_region table) {
  counts numbers{co_await run(1, {.fast = true}), std::nullopt, {}};
  co_await peer.write(co_await device.pool().allocate(10), table.slice(0, 10), {.immediate = 7});
  auto link = co_await device.connect("10.0.0.7:7471", {.receive_depth = 64});
  const int number{co_await run(1, options{})};
  std::array<std::byte, 4> head{};
  for (int each : {1, 2, 3}) co_await run(each, {});
}

task<> blocks(net::connection& peer, int kind) {
  while (auto message = co_await peer.recv()) {
    if (message->size() == 0) {
      co_await peer.close();
    } else {
      co_await peer.send(std::move(message->payload));
    }
  }
  switch (kind) {
    case 1: {
      co_await peer.close();
      break;
    }
    default:
      co_await peer.recv();
  }
  const auto inside = [&]() -> task<> { co_await peer.close(); };
  const auto noticed = [&peer]() mutable noexcept -> task<int> {
    co_await peer.close();
    co_return 1;
  };
  struct local {
    std::string words;
    task<> say(net::connection& to) const { co_await to.close(); }
  };
  const local here{"words"};
  try {
    co_await inside();
  } catch (const error&) {
    kind = 1;
  }
  co_await here.say(peer);
}

// Conditions that await, with a variable around them, in them, or in a lambda.
task<> drains(channel<int>& numbers, net::connection& peer) {
  while (const auto value = co_await numbers.receive()) {
  }
  for (int i = 0; i < 2; ++i) {
    if (co_await peer.recv()) co_return;
  }
}
task<> counts(channel<int>& numbers) {
  std::size_t count = 0;
  for (;;) {
    if (!co_await numbers.receive()) co_return;
    ++count;
  }
}
const auto drain = [](channel<int>& numbers) -> task<> {
  while (co_await numbers.receive()) {
  }
};
