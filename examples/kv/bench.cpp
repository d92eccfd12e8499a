// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include <kv/bench.hpp>
#include <kv/client.hpp>
#include <kv/text_client.hpp>

namespace kv {

using namespace weft;

namespace {

constexpr std::size_t words = longest_value / sizeof(std::uint64_t);
using value_words = std::array<std::uint64_t, words>;

// Which key and which version, and six words that follow from these.
value_words words_of(std::uint64_t index, std::uint64_t version) noexcept {
  value_words made{index, version};
  std::uint64_t state = index * 0x9e3779b97f4a7c15 ^ version;
  for (std::size_t i = 2; i < words; ++i) {
    state = (state ^ (state >> 31)) * 0xbf58476d1ce4e5b9 + i;
    made[i] = state;
  }
  return made;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

class bench {
 public:
  explicit bench(bench_options options) : options_(std::move(options)), random_(options_.seed) {}

  task<bench_result> run(net::device& device) {
    auto reader = co_await client::connect(device, options_.address);
    auto writer = co_await client::connect(device, options_.address);
    auto text = co_await text_client::connect(device, "tcp://" + options_.tcp_address);
    const auto measure = [&]() -> task<> {
      for (unsigned i = 0; i < options_.rounds; ++i) {
        co_await one_round(rates_, [&] { return read_all(reader); });
        co_await one_round(tcp_rates_, [&] { return ask_all(text); });
      }
      done_ = true;
    };
    co_await when_all(measure(), set_on(writer));
    result_.gets_per_second = median(rates_);
    result_.tcp_gets_per_second = median(tcp_rates_);
    result_.torn = reader.statistics().torn;
    co_await reader.close();
    co_await writer.close();
    co_return result_;
  }

 private:
  [[nodiscard]] std::uint64_t draw(unsigned hot_percent) {
    const std::uint64_t among =
        random_() % 100 < hot_percent ? std::min(options_.hot_keys, options_.keys) : options_.keys;
    return random_() % among;
  }
  [[nodiscard]] bool goes_on() const { return executor::current()->now() < end_; }
  void check(std::uint64_t index, bool found, const value& got) {
    ++result_.gets;
    if (!found) {
      ++result_.missing;
    } else if (!is_whole(got.view(), index)) {
      ++result_.wrong;
    }
  }

  template <class Work>
  task<> one_round(std::vector<double>& rates, Work work) {
    const std::uint64_t before = result_.gets;
    const time_point start = executor::current()->now();
    end_ = start + options_.round;
    auto all = work();
    co_await std::move(all);
    const auto time = std::chrono::duration<double>(executor::current()->now() - start);
    rates.push_back(static_cast<double>(result_.gets - before) / time.count());
  }

  task<> read_on(client& through) {
    while (goes_on()) {
      const std::uint64_t index = draw(10);
      value got;
      const bool found = co_await through.get(bench_key(index), got);
      check(index, found, got);
    }
  }
  task<> read_all(client& through) {
    std::vector<task<>> all;
    all.reserve(options_.depth);
    for (std::size_t i = 0; i < options_.depth; ++i) all.push_back(read_on(through));
    co_await when_all(std::move(all));
  }

  task<> ask_all(text_client& through) {
    std::vector<std::uint64_t> indices(options_.depth);
    std::vector<std::string> keys(options_.depth);
    while (goes_on()) {
      for (std::size_t i = 0; i < indices.size(); ++i) keys[i] = bench_key(indices[i] = draw(10));
      const auto each = [&](std::size_t i, bool found, const value& got) { check(indices[i], found, got); };
      co_await through.get(keys, each);
    }
  }

  task<> set_on(client& through) {
    for (std::uint64_t version = 1; !done_; ++version) {
      const std::uint64_t index = draw(50);
      const value next = bench_value(index, version);
      co_await through.set(bench_key(index), next.view());
      ++result_.sets;
    }
  }

  bench_options options_;
  std::mt19937_64 random_;
  time_point end_;
  bool done_ = false;
  bench_result result_;
  std::vector<double> rates_;
  std::vector<double> tcp_rates_;
};

}  // namespace

std::string bench_key(std::uint64_t index) { return fmt::format("key:{}", index); }

value bench_value(std::uint64_t index, std::uint64_t version) noexcept {
  const value_words made = words_of(index, version);
  return value(std::string_view(reinterpret_cast<const char*>(made.data()), sizeof made));
}

bool is_whole(std::string_view bytes, std::uint64_t index) noexcept {
  value_words got;
  if (bytes.size() != sizeof got) return false;
  std::memcpy(got.data(), bytes.data(), sizeof got);
  return got[0] == index && got == words_of(index, got[1]);
}

task<bench_result> run_bench(net::device& device, bench_options options) {
  bench all(std::move(options));
  co_return co_await all.run(device);
}

}  // namespace kv
