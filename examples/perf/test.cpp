// SPDX-License-Identifier: Apache-2.0
#include "test.hpp"

#include <weft/weft.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "receives.hpp"

namespace perf {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

constexpr auto patience = 10s;
constexpr auto between_reports = 100ms;

/// A test under way.
class runner {
 public:
  runner(weft::net::device& device, std::string address, const test& what)
      : device_(device), address_(std::move(address)), what_(what) {}

  weft::task<outcome> run(watcher* seen);

 private:
  void check_memory() const;
  weft::task<> open_lanes();
  weft::task<lane> open_lane();
  weft::task<> take_hello(lane& one);
  weft::task<> run_lane(lane& one, meter& counts);
  weft::task<std::uint64_t> wait_for_all(lane& one);
  weft::task<double> phase(meter& counts);
  weft::task<> watch(const meter& counts, watcher& seen);
  weft::task<> close_lanes();
  [[nodiscard]] order make_order() const;
  [[nodiscard]] checking agreed_checking() const noexcept;
  [[nodiscard]] std::uint32_t receive_size() const noexcept {
    return what_.how().server == role::echo ? std::max(what_.size, control_bytes) : control_bytes;
  }
  [[nodiscard]] std::size_t buffers() const noexcept { return what_.what->fills_memory ? what_.depth : 1; }

  weft::net::device& device_;
  std::string address_;
  const test& what_;
  std::vector<lane> lanes_;
  std::uint64_t counted_ = 0;  // by the server, in this phase, on all lanes
  weft::poll_policy server_polling_ = weft::poll_policy::adaptive;
};

order runner::make_order() const {
  return {.what = what_.how().server,
          .checksum = what_.checksum,
          .size = what_.size,
          .depth = what_.depth,
          .access = what_.what->access};
}

checking runner::agreed_checking() const noexcept {
  if (!lanes_.front().peer.capabilities().checksum) return checking::off;
  return what_.checksum == checking::late ? checking::late : checking::on;
}

weft::task<lane> runner::open_lane() {
  const order wanted = make_order();
  const auto packed = wanted.pack();
  weft::net::connection_options options;
  options.receive_size = receive_size();
  options.receive_depth = receives_at_depth(1, options.receive_size);
  options.send_depth = std::max<std::uint16_t>(what_.depth, 2);
  options.outgoing_reads = reads_at_depth(what_.depth);
  options.private_data = packed;
  options.resume_within = what_.resume_within;
  auto peer = co_await device_.connect(address_, options);
  lane one(std::move(peer));
  co_await take_hello(one);
  one.memory.reserve(buffers());
  while (one.memory.size() < buffers()) one.memory.push_back(co_await device_.allocate(what_.size));
  co_return one;
}

weft::task<> runner::take_hello(lane& one) {
  const auto said = co_await weft::with_timeout(patience, one.peer.recv_or_throw());
  const hello welcome = hello::unpack(said.bytes());
  server_polling_ = welcome.polling;
  if (what_.what->access == weft::mr::usage::none) co_return;
  if (!welcome.memory) throw weft::error(weft::errc::protocol_error, "the server has opened no memory");
  one.target = one.peer.prepare(welcome.memory->slice(0, what_.size));
}

// Without it, connections would wait for each other's memory until their time is up.
void runner::check_memory() const {
  const auto limits = device_.pool().statistics();
  const std::uint64_t receiving = memory_for_receives(receives_at_depth(1, receive_size()), receive_size());
  const std::uint64_t sending = std::uint64_t{what_.size} * buffers();
  const std::uint64_t per_lane = std::max(receiving, sending);
  if (receiving * what_.connections <= limits.receive.max_bytes &&
      sending * what_.connections <= limits.send.max_bytes) {
    return;
  }
  const std::uint64_t mebibytes = (2 * per_lane * what_.connections >> 20) + 1;
  std::string words = fmt::format("this takes --memory {}", mebibytes);
  if (!limits.max_bytes_reason.empty()) words += fmt::format(", and {}", limits.max_bytes_reason);
  throw weft::error(weft::errc::no_memory, words);
}

weft::task<> runner::open_lanes() {
  check_memory();
  lanes_.reserve(what_.connections);
  while (lanes_.size() < what_.connections) {
    lane opened = co_await open_lane();
    lanes_.push_back(std::move(opened));
  }
}

// Until everything that was done on the lane has arrived; yields how many messages the server has counted.
weft::task<std::uint64_t> runner::wait_for_all(lane& one) {
  auto question = co_await device_.allocate(mark::bytes_beside(what_.size));
  mark::pack(question.bytes());
  co_await one.peer.send(std::move(question));
  const auto answer = co_await one.peer.recv_or_throw();
  co_return count::unpack(answer.bytes()).messages;
}

weft::task<> runner::run_lane(lane& one, meter& counts) {
  const auto start_all = [&](weft::scope& in_flight) -> weft::task<> {
    for (std::size_t i = 0; i < what_.depth; ++i) {
      in_flight.spawn(what_.how().run(one, one.memory[i % one.memory.size()], counts));
    }
    co_return;
  };
  co_await weft::with_scope(weft::on_failure::stop_siblings, start_all);
  const std::uint64_t arrived = co_await wait_for_all(one);
  counted_ += arrived;
}

// All lanes at the same time; yields the seconds that it took.
weft::task<double> runner::phase(meter& counts) {
  const auto start_all = [&](weft::scope& side_by_side) -> weft::task<> {
    for (lane& one : lanes_) side_by_side.spawn(run_lane(one, counts));
    co_return;
  };
  counted_ = 0;
  const auto start = clock::now();
  co_await weft::with_scope(weft::on_failure::stop_siblings, start_all);
  const auto end = clock::now();
  const std::uint64_t sent = what_.how().server == role::wait ? 0 : counts.latencies().count();
  if (counted_ != sent) {
    throw weft::error(weft::errc::protocol_error,
                      fmt::format("sent {} messages, but the server counted {}", sent, counted_));
  }
  co_return std::chrono::duration<double>(end - start).count();
}

weft::task<> runner::watch(const meter& counts, watcher& seen) {
  while (true) {
    co_await weft::sleep_for(between_reports);
    seen.done(counts.done());
  }
}

weft::task<> runner::close_lanes() {
  for (lane& one : lanes_) co_await one.peer.close();
}

weft::task<outcome> runner::run(watcher* seen) {
  co_await open_lanes();
  meter warm_up(what_.warm_up, clock::now());
  static_cast<void>(co_await phase(warm_up));

  outcome result{.what = what_.what, .measures = what_.measures, .size = what_.size, .depth = what_.depth};
  meter counts(what_.length, clock::now());
  const auto watched = [&](weft::scope& tasks) -> weft::task<> {
    if (seen != nullptr) tasks.spawn(watch(counts, *seen));
    result.seconds = co_await phase(counts);
    tasks.request_stop();
  };
  co_await weft::with_scope(weft::on_failure::stop_siblings, watched);

  const histogram& times = counts.latencies();
  const double trips = what_.how().trips;
  result.operations = times.count();
  result.latency = {.min = times.min() / trips,
                    .p50 = times.percentile(50) / trips,
                    .p90 = times.percentile(90) / trips,
                    .p99 = times.percentile(99) / trips,
                    .p999 = times.percentile(99.9) / trips,
                    .max = times.max() / trips};
  result.longest_pause = std::chrono::duration<double, std::nano>(counts.longest_pause()).count();
  result.fabric = std::string(lanes_.front().peer.fabric());
  result.checksum = agreed_checking();
  result.server_polling = server_polling_;
  co_await close_lanes();
  co_return result;
}

}  // namespace

std::string_view name_of(quantity what) noexcept { return what == quantity::latency ? "latency" : "bandwidth"; }

std::string_view name_of(weft::poll_policy how) noexcept {
  switch (how) {
    case weft::poll_policy::adaptive:
      return "adaptive";
    case weft::poll_policy::spin:
      return "spin";
    case weft::poll_policy::sleep:
      return "sleep";
  }
  return "adaptive";
}

weft::task<outcome> run(weft::net::device& device, std::string address, test what, watcher* seen) {
  runner one(device, std::move(address), what);
  co_return co_await one.run(seen);
}

}  // namespace perf
