// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include <rpc/bench.hpp>
#include <rpc/client.hpp>

namespace rpc {
namespace {

class bench {
 public:
  explicit bench(const bench_options& options)
      : options_(options),
        arguments_(options.fetch ? std::to_string(options.bytes) : std::string(options.bytes, 'x')),
        what_{.method = options.fetch ? "fetch" : "echo", .arguments = arguments_, .timeout = options.timeout} {}

  weft::task<bench_result> run(weft::net::device& device, std::string address) {
    client_options roomy;
    if (options_.fetch) roomy.room_bytes = options_.concurrency * options_.bytes;
    const auto all = [this](client& through) -> weft::task<> { co_await call_all(through); };
    co_await with_client(device, std::move(address), roomy, all);
    co_return std::move(result_);
  }

 private:
  weft::task<> call_all(client& through) {
    const weft::time_point start = now();
    end_ = start + options_.time;
    std::vector<weft::task<>> callers;
    for (std::size_t i = 0; i < options_.concurrency; ++i) callers.push_back(call_on(through));
    co_await weft::when_all(std::move(callers));
    result_.time = now() - start;
  }

  weft::task<> call_on(client& through) {
    while (now() < end_) {
      const weft::time_point start = now();
      try {
        const bool right = co_await call_once(through);
        if (!right) ++result_.wrong;
        result_.latencies.record(now() - start);
      } catch (const weft::error& why) {
        if (why.code() != weft::errc::timed_out) throw;
        ++result_.timed_out;
      }
    }
  }

  weft::task<bool> call_once(client& through) {
    if (!options_.fetch) co_return co_await through.call(what_) == arguments_;
    const auto got = co_await through.fetch(what_, options_.bytes);
    co_return got.size() == options_.bytes;
  }

  static weft::time_point now() noexcept { return weft::executor::current()->now(); }

  const bench_options options_;
  const std::string arguments_;
  const request what_;
  weft::time_point end_;
  bench_result result_;
};

}  // namespace

weft::task<bench_result> run_bench(weft::net::device& device, std::string address, bench_options options) {
  bench all(options);
  co_return co_await all.run(device, std::move(address));
}

}  // namespace rpc
