// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <nvme/host_bench.hpp>
#include <nvme/sizes.hpp>

namespace nvme {

using weft::task;

namespace {

// splitmix64: by far good enough for places on a disk.
class places {
 public:
  explicit places(std::uint64_t seed) noexcept : state_(seed) {}
  std::uint64_t next() noexcept {
    std::uint64_t made = state_ += 0x9e3779b97f4a7c15;
    made = (made ^ (made >> 30)) * 0xbf58476d1ce4e5b9;
    made = (made ^ (made >> 27)) * 0x94d049bb133111eb;
    return made ^ (made >> 31);
  }

 private:
  std::uint64_t state_;
};

// What a place holds that was written so many times.
void fill(std::span<std::byte> into, std::uint64_t place, std::uint32_t version) {
  places words(place << 32 ^ version);
  for (std::size_t at = 0; at < into.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = words.next();
    std::memcpy(into.data() + at, &word, sizeof word);
  }
}

bool holds(std::span<const std::byte> data, std::uint64_t place, std::uint32_t version) {
  places words(place << 32 ^ version);
  for (std::size_t at = 0; at < data.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = words.next();
    if (std::memcmp(data.data() + at, &word, sizeof word) != 0) return false;
  }
  return true;
}

class bench {
 public:
  bench(host& through, const bench_options& options)
      : through_(through), options_(options), of_(through.find(options.name_space)), random_(options.seed) {
    check();
    places_ = (options.span != 0 ? options.span : of_.size()) / options.bytes;
    if (options.verify) {
      check_places();
      versions_.resize(places_);
      busy_.resize(places_);
    }
  }

  task<bench_result> run() {
    const weft::time_point start = now();
    end_ = weft::later(start, options_.time);
    std::vector<task<>> all;
    for (std::size_t i = 0; i < through_.queues(); ++i) {
      host_queue& queue = through_.queue(i);
      for (std::size_t k = 0; k < queue.options().lanes; ++k) all.push_back(note_failure(work(queue)));
    }
    co_await weft::when_all(std::move(all));
    result_.seconds = std::chrono::duration<double>(now() - start).count();
    if (failure_) std::rethrow_exception(failure_);
    for (std::size_t i = 0; i < through_.queues(); ++i) {
      result_.in_capsule += through_.queue(i).in_capsule();
      result_.revoked += through_.queue(i).revoked();
    }
    co_return std::move(result_);
  }

 private:
  void check() const {
    const std::uint32_t block = of_.block_bytes();
    const std::uint64_t span = options_.span != 0 ? options_.span : of_.size();
    const std::size_t most = through_.most_bytes(of_);
    require(of_.identity.metadata_bytes == 0,
            fmt::format("namespace {} has metadata with each block: not supported", of_.id));
    require(options_.bytes != 0 && options_.bytes % block == 0,
            fmt::format("commands of {} bytes: namespace {} has blocks of {}", options_.bytes, of_.id, block));
    require(options_.bytes <= most,
            fmt::format("commands of {}: the most is {}", format_size(options_.bytes), format_size(most)));
    require(span <= of_.size(),
            fmt::format("{} of namespace {}, which has {}", format_size(span), of_.id, format_size(of_.size())));
    require(options_.bytes <= span,
            fmt::format("namespace {} has no room for one command of {} bytes", of_.id, options_.bytes));
    require(options_.write_percent == 0 || !of_.identity.is_read_only(),
            fmt::format("namespace {} is read-only", of_.id));
  }

  // Each place is used by one command at a time, and has a version.
  void check_places() const {
    constexpr std::uint64_t most = std::uint64_t{1} << 28;
    std::uint64_t least = 0;
    for (std::size_t i = 0; i < through_.queues(); ++i) least += through_.queue(i).options().lanes;
    if (places_ >= least && places_ <= most) return;
    throw std::invalid_argument(fmt::format("to verify takes {} to {} places of {}, and there are {}", least, most,
                                            format_size(options_.bytes), places_));
  }

  static weft::time_point now() noexcept { return weft::executor::current()->now(); }

  // Commands that are under way when another fails end by themselves.
  task<> note_failure(task<> part) {
    try {
      co_await std::move(part);
    } catch (...) {
      if (!failure_) failure_ = std::current_exception();
    }
  }

  [[nodiscard]] bool claim(weft::time_point at) {
    if (failure_ || at >= end_ || claimed_ == options_.operations) return false;
    ++claimed_;
    return true;
  }
  [[nodiscard]] std::uint64_t draw_place() noexcept {
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>(wide{random_.next()} * places_ >> 64);
  }

  task<> work(host_queue& queue) {
    auto on = co_await queue.take_lane();
    fill(on.bytes(), 0, 0);
    for (weft::time_point start = now(); claim(start);) {
      const std::uint64_t place = draw_place();
      const bool writes = options_.write_percent > 0 && random_.next() % 100 < options_.write_percent;
      if (options_.verify) {
        co_await use_and_check(queue, on, place, writes);
      } else if (writes) {
        co_await through_.write(queue, on, of_, place * options_.bytes, options_.bytes);
      } else {
        co_await through_.read(queue, on, of_, place * options_.bytes, options_.bytes);
      }
      const weft::time_point end = now();
      (writes ? result_.writes : result_.reads).record(end - start);
      start = end;
    }
  }

  // Nobody else uses the place meanwhile: what it holds is then known.
  task<> use_and_check(host_queue& queue, const host_queue::lane& on, std::uint64_t place, bool writes) {
    while (busy_[place]) place = (place + 1) % places_;
    busy_[place] = true;
    const auto data = on.bytes().first(options_.bytes);
    if (writes) {
      fill(data, place, versions_[place] + 1);
      co_await through_.write(queue, on, of_, place * options_.bytes, options_.bytes);
      ++versions_[place];
    } else {
      std::ranges::fill(data, std::byte{0xee});
      co_await through_.read(queue, on, of_, place * options_.bytes, options_.bytes);
      if (versions_[place] != 0 && !holds(data, place, versions_[place])) ++result_.wrong;
    }
    busy_[place] = false;
  }

  host& through_;
  const bench_options& options_;
  const host_namespace& of_;
  places random_;
  std::uint64_t places_ = 0;
  std::uint64_t claimed_ = 0;
  weft::time_point end_{};
  std::vector<std::uint32_t> versions_;  // how often each place was written
  std::vector<bool> busy_;
  bench_result result_;
  std::exception_ptr failure_;
};

constexpr std::array percentiles{50., 90., 99., 99.9, 99.99};

void describe(std::string& into, std::string_view name, const perf::histogram& times) {
  if (times.count() == 0) return;
  into += fmt::format("{}: {}, latency in us: min {:.1f}", name, times.count(), times.min() / 1000);
  for (const double percent : percentiles)
    into += fmt::format(", p{:g} {:.1f}", percent, times.percentile(percent) / 1000);
  into += fmt::format(", max {:.1f}\n", times.max() / 1000);
}

nlohmann::ordered_json as_json(const perf::histogram& times) {
  nlohmann::ordered_json made{{"count", times.count()}, {"min", times.min()}};
  for (const double percent : percentiles) made[fmt::format("p{:g}", percent)] = times.percentile(percent);
  made["max"] = times.max();
  return made;
}

}  // namespace

task<bench_result> run_bench(host& through, bench_options options) {
  bench all(through, options);
  co_return co_await all.run();
}

std::string to_text(const bench_result& what) {
  std::string text = fmt::format("{} commands in {:.2f} s: {:.0f} per second\n",
                                 what.reads.count() + what.writes.count(), what.seconds, what.rate());
  describe(text, "reads", what.reads);
  describe(text, "writes", what.writes);
  text += fmt::format("{} with their data in the capsule, {} keys revoked by the controller, {} wrong\n",
                      what.in_capsule, what.revoked, what.wrong);
  return text;
}

std::string to_json(const bench_result& what, const host& through, const bench_options& options) {
  std::size_t commands = 0;
  for (std::size_t i = 0; i < through.queues(); ++i) commands += through.options().commands;
  const nlohmann::ordered_json made{{"address", through.options().address},
                                    {"subsystem", through.options().subsystem},
                                    {"bytes", options.bytes},
                                    {"write_percent", options.write_percent},
                                    {"queues", through.queues()},
                                    {"commands", commands},
                                    {"seconds", what.seconds},
                                    {"per_second", what.rate()},
                                    {"reads", as_json(what.reads)},
                                    {"writes", as_json(what.writes)},
                                    {"in_capsule", what.in_capsule},
                                    {"revoked", what.revoked},
                                    {"wrong", what.wrong}};
  return made.dump(2);
}

}  // namespace nvme
