// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include <kv/bench.hpp>
#include <kv/client.hpp>
#include <kv/text_client.hpp>

namespace kv {

using namespace weft;

namespace {

// What a value is made of: which key and which version, and words that follow from these and from its size.
class telling_words {
 public:
  telling_words(std::uint64_t index, const version& which, std::size_t bytes) noexcept
      : first_{index, which.server, which.number},
        state_(index * 0x9e3779b97f4a7c15 ^ which.server ^ which.number ^ bytes << 32) {}

  std::uint64_t next() noexcept {
    const std::size_t place = place_++;
    if (place < first_.size()) return first_[place];
    return state_ = (state_ ^ (state_ >> 31)) * 0xbf58476d1ce4e5b9 + place;
  }

 private:
  std::array<std::uint64_t, 3> first_;
  std::uint64_t state_;
  std::size_t place_ = 0;
};
static_assert(least_bench_value == 3 * sizeof(std::uint64_t));

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// Whether another connection may go on where this one has ended.
bool may_go_on(const error& why) noexcept {
  return why.code() == errc::peer_restarted || why.code() == errc::peer_closed || net::may_heal(why);
}

// A connection that another follows when it has ended, for as long as it takes the network or the server to come back.
template <class Client>
class successive {
 public:
  using connector = std::function<task<Client>()>;

  successive(connector connect, std::chrono::milliseconds patience)
      : connect_(std::move(connect)), patience_(patience) {}

  task<> begin() {
    auto first = co_await connect_patiently();
    now_ = std::make_shared<Client>(std::move(first));
  }
  [[nodiscard]] const std::shared_ptr<Client>& now() const noexcept { return now_; }
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_; }

  // Of an operation that has ended with `ended`: returns once there is another connection. Throws `why` where none is
  // waited for.
  task<> go_on(std::shared_ptr<Client> ended, error why) {
    if (patience_.count() == 0 || !may_go_on(why)) throw error(why);
    ++lost_;
    const auto turn = co_await connecting_.lock();
    if (now_ != ended) co_return;
    fmt::print(stderr, "kv: {}; connecting anew\n", why.what());
    auto next = co_await connect_patiently();
    now_ = std::make_shared<Client>(std::move(next));
  }

 private:
  task<Client> connect_patiently() {
    const time_point end = later(executor::current()->now(), patience_);
    net::back_off pauses({.first_pause = std::chrono::milliseconds(20), .max_pause = std::chrono::milliseconds(500)});
    for (;;) {
      std::optional<error> failure;
      try {
        co_return co_await connect_();
      } catch (const error& why) {
        failure = why;
      }
      const time_point next = later(executor::current()->now(), pauses.next());
      if (!may_go_on(*failure) || next >= end) throw error(*failure);
      co_await sleep_until(next);
    }
  }

  const connector connect_;
  const std::chrono::milliseconds patience_;
  std::shared_ptr<Client> now_;
  mutex connecting_;
  std::uint64_t lost_ = 0;
};

// Which versions may be read. A server that has answered a SET answers every later GET with that or a newer one; and
// one that was started anew has nothing of the one before.
class history {
 public:
  explicit history(std::uint64_t keys) : oldest_(keys) {}

  // All that follows is of this server.
  void begin(generation server) {
    if (server == server_) return;
    server_ = server;
    ++servers_;
    std::fill(oldest_.begin(), oldest_.end(), 0);
  }
  void was_set(std::uint64_t index, const version& which) noexcept {
    if (which.server == server_) oldest_[index] = std::max(oldest_[index], which.number);
  }
  // What may be read from now on, of a server that is asked.
  [[nodiscard]] version oldest(std::uint64_t index, generation asked) const noexcept {
    return {.server = asked, .number = asked == server_ ? oldest_[index] : 0};
  }
  [[nodiscard]] std::uint64_t servers() const noexcept { return servers_; }

 private:
  std::vector<std::uint64_t> oldest_;
  generation server_ = 0;
  std::uint64_t servers_ = 0;
};

class bench {
 public:
  explicit bench(bench_options options)
      : options_(std::move(options)), random_(options_.seed), history_(options_.keys) {}

  task<bench_result> run(net::device& device) {
    const auto by_reading = [&] { return client::connect(device, options_.address, options_.resume_within); };
    const auto by_asking = [&] { return text_client::connect(device, "tcp://" + options_.tcp_address); };
    successive<client> reader(by_reading, options_.resume_within);
    successive<client> writer(by_reading, options_.resume_within);
    successive<text_client> text(by_asking, options_.resume_within);
    const bool reads = !options_.address.empty();
    const bool asks = !options_.tcp_address.empty();
    if (reads) co_await reader.begin();
    if (asks) co_await text.begin();
    const auto measure = [&]() -> task<> {
      for (unsigned i = 0; i < options_.rounds; ++i) {
        if (reads) co_await one_round(rates_, [&] { return read_all(reader); });
        if (asks) co_await one_round(tcp_rates_, [&] { return ask_all(text); });
      }
      done_ = true;
    };
    if (reads && !options_.read_only) {
      co_await writer.begin();
      co_await when_all(measure(), set_on(writer));
    } else {
      co_await measure();
    }
    result_.gets_per_second = median(rates_);
    result_.tcp_gets_per_second = median(tcp_rates_);
    result_.servers = history_.servers();
    result_.lost = reader.lost() + writer.lost() + text.lost();
    if (reads) {
      result_.torn = reader.now()->statistics().torn;
      co_await reader.now()->close();
    }
    if (writer.now()) co_await writer.now()->close();
    co_return result_;
  }

 private:
  [[nodiscard]] std::uint64_t draw(unsigned hot_percent) {
    const std::uint64_t among =
        random_() % 100 < hot_percent ? std::min(options_.hot_keys, options_.keys) : options_.keys;
    return random_() % among;
  }
  [[nodiscard]] bool goes_on() const { return executor::current()->now() < end_; }
  // Yields the version, if it is one.
  std::optional<version> check(std::uint64_t index, bool found, const value& got) {
    ++result_.gets;
    if (!found) {
      ++result_.missing;
      return std::nullopt;
    }
    const auto which = version_in(got.view(), index);
    if (!which) ++result_.wrong;
    return which;
  }
  void check_age(const version& got, const version& oldest) noexcept {
    if (got.server != oldest.server || got.number < oldest.number) ++result_.stale;
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

  task<> read_on(successive<client>& through) {
    while (goes_on()) {
      const std::shared_ptr<client> server = through.now();
      const std::uint64_t index = draw(10);
      const version oldest = history_.oldest(index, server->server());
      value got;
      std::optional<error> failure;
      try {
        const bool found = co_await server->get(bench_key(index), got);
        if (const auto which = check(index, found, got)) check_age(*which, oldest);
      } catch (const error& why) {
        failure = why;
      }
      if (failure) co_await through.go_on(server, *failure);
    }
  }
  task<> read_all(successive<client>& through) {
    std::vector<task<>> all;
    all.reserve(options_.depth);
    for (std::size_t i = 0; i < options_.depth; ++i) all.push_back(read_on(through));
    co_await when_all(std::move(all));
  }

  // A TCP connection does not say which server's it is. All that comes over it is of one.
  task<> ask_all(successive<text_client>& through) {
    std::vector<std::uint64_t> indices(options_.depth);
    std::vector<std::string> keys(options_.depth);
    while (goes_on()) {
      const std::shared_ptr<text_client> server = through.now();
      for (std::size_t i = 0; i < indices.size(); ++i) keys[i] = bench_key(indices[i] = draw(10));
      const auto each = [&](std::size_t i, bool found, const value& got) {
        const auto which = check(indices[i], found, got);
        if (!which) return;
        if (server != asked_) asked_server_ = which->server;
        asked_ = server;
        if (which->server != asked_server_) ++result_.stale;
      };
      std::optional<error> failure;
      try {
        co_await server->get(keys, each);
      } catch (const error& why) {
        failure = why;
      }
      if (failure) co_await through.go_on(server, *failure);
    }
  }

  task<> set_on(successive<client>& through) {
    for (std::uint64_t number = 1; !done_; ++number) {
      const std::shared_ptr<client> server = through.now();
      history_.begin(server->server());
      const std::uint64_t index = draw(50);
      const version which{.server = server->server(), .number = number};
      const std::string next = bench_value(index, which, options_.value_bytes);
      std::optional<error> failure;
      try {
        co_await server->set(bench_key(index), next);
        history_.was_set(index, which);
        ++result_.sets;
      } catch (const error& why) {
        failure = why;
      }
      if (!failure) continue;
      co_await through.go_on(server, *failure);
      history_.begin(through.now()->server());  // even if the measurement is over by now
    }
  }

  bench_options options_;
  std::mt19937_64 random_;
  history history_;
  time_point end_;
  bool done_ = false;
  bench_result result_;
  std::vector<double> rates_;
  std::vector<double> tcp_rates_;
  std::shared_ptr<text_client> asked_;  // the TCP connection that has answered last, and its server
  generation asked_server_ = 0;
};

}  // namespace

std::string bench_key(std::uint64_t index) { return fmt::format("key:{}", index); }

std::string bench_value(std::uint64_t index, const version& which, std::size_t bytes) {
  std::string made(bytes, '\0');
  telling_words words(index, which, bytes);
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    const std::uint64_t word = words.next();
    std::memcpy(made.data() + i, &word, std::min(sizeof word, bytes - i));
  }
  return made;
}

std::optional<version> version_in(std::string_view bytes, std::uint64_t index) noexcept {
  std::array<std::uint64_t, 3> first{};
  if (bytes.size() < sizeof first) return std::nullopt;
  std::memcpy(first.data(), bytes.data(), sizeof first);
  const version which{.server = first[1], .number = first[2]};
  telling_words words(index, which, bytes.size());
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = words.next();
    if (std::memcmp(bytes.data() + i, &word, std::min(sizeof word, bytes.size() - i)) != 0) return std::nullopt;
  }
  return which;
}

task<bench_result> run_bench(net::device& device, bench_options options) {
  bench all(std::move(options));
  co_return co_await all.run(device);
}

}  // namespace kv
