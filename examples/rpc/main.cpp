// SPDX-License-Identifier: Apache-2.0
// Calls over one connection, with timeouts that leave it alone: `rpc --help`.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <common/network.hpp>
#include <common/program.hpp>
#include <rpc/bench.hpp>
#include <rpc/client.hpp>
#include <rpc/methods.hpp>
#include <rpc/server.hpp>

namespace {

using namespace weft;

struct call_options {
  std::string address;
  std::string method;
  std::vector<std::string> words;
  double timeout_seconds = 5;

  [[nodiscard]] duration timeout() const { return common::in_seconds<duration>(timeout_seconds); }
};

// The first signal lets the calls under way end, the second one stops them.
int serve(executor& ex, net::device& device, const std::string& address, net::listener_options how,
          signal_set& signals) {
  auto listener = ex.run(device.listen(address, how));
  fmt::print("answering calls on {} over {}, {}\n", listener.address(), device.name(), ex.driver());
  std::fflush(stdout);
  const rpc::method_table methods = rpc::standard_methods();
  const auto ended = run_until_signal(ex, signals, rpc::serve(device, listener, methods), [&] { listener.close(); });
  ended.result.value();
  return common::success;
}

// What is fetched is checked, not printed.
task<> print_fetched(rpc::client& through, const rpc::request& what) {
  const std::uint64_t bytes = rpc::parse_bytes(what.arguments);
  const time_point start = executor::current()->now();
  const auto got = co_await through.fetch(what, bytes);
  const std::chrono::duration<double> time = executor::current()->now() - start;
  if (got.size() != bytes || !rpc::is_pattern(got.bytes(), 0))
    throw std::runtime_error("the fetched bytes are damaged");
  fmt::print("{} bytes in {:.3f} s, {:.0f} MiB/s\n", got.size(), time.count(),
             static_cast<double>(got.size()) / time.count() / (1 << 20));
}

task<int> call(net::device& device, call_options options) {
  const std::string arguments = fmt::format("{}", fmt::join(options.words, " "));
  const rpc::request what{.method = options.method, .arguments = arguments, .timeout = options.timeout()};
  std::string trouble;
  const auto once = [&](rpc::client& through) -> task<> {
    try {
      if (what.method == "fetch") {
        co_await print_fetched(through, what);
      } else {
        const auto text = co_await through.call(what);
        fmt::print("{}\n", text);
      }
    } catch (const rpc::call_failed& why) {  // the connection is as good as before, and closed in order
      trouble = fmt::format("call {}: {}", what.method, why.what());
    } catch (const error& why) {
      if (why.code() != errc::timed_out) throw;
      trouble = why.what();
    }
  };
  co_await rpc::with_client(device, options.address, {}, once);
  if (trouble.empty()) co_return common::success;
  fmt::print(stderr, "rpc: {}\n", rpc::printable(trouble));
  co_return common::failed;
}

task<int> bench(net::device& device, std::string address, rpc::bench_options options) {
  const auto found = co_await rpc::run_bench(device, address, options);
  const double seconds = std::chrono::duration<double>(found.time).count();
  const double rate = static_cast<double>(found.latencies.count()) / seconds;
  fmt::print("{} calls in {:.2f} s, {} at a time: {:.0f} per second", found.latencies.count(), seconds,
             options.concurrency, rate);
  if (options.fetch) fmt::print(", {:.0f} MiB/s", rate * static_cast<double>(options.bytes) / (1 << 20));
  fmt::print("\nlatency in us: min {:.1f}", found.latencies.min() / 1000);
  for (const double percent : {50., 90., 99., 99.9}) {
    fmt::print(", p{:g} {:.1f}", percent, found.latencies.percentile(percent) / 1000);
  }
  fmt::print(", max {:.1f}\n", found.latencies.max() / 1000);
  fmt::print("{} timed out, {} wrong answers\n", found.timed_out, found.wrong);
  co_return found.wrong == 0 ? common::success : common::failed;
}

const auto is_size = common::check_by(rpc::parse_bytes);

}  // namespace

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("Calls over one connection: many at a time, with timeouts, and large answers by one-sided writes.",
               "rpc");
  app.footer("Exit codes: 0 success, 1 failure, 2 wrong usage.");
  std::string device_name = "auto";
  app.add_option("--device", device_name, "auto, or the transport by name: iwarp or shm")->type_name("NAME");
  app.require_subcommand(1);
  std::function<int(executor&, net::device&)> run;
  std::optional<signal_set> signals;

  std::string listen_address = "127.0.0.1:7477";
  CLI::App& serving = *app.add_subcommand("serve", "answer calls: echo, sum, sleep, fetch, fail");
  common::add_value(serving, "--listen", listen_address, "where; 0.0.0.0 lets everybody in", "HOST:PORT");
  net::listener_options how;
  how.max_connections = 256;
  common::add_value(serving, "--max-connections", how.max_connections, "at a time; clients beyond are told so", "COUNT")
      .check(CLI::Range(1, 1'000'000));
  serving.callback([&] {
    signals.emplace({SIGINT, SIGTERM});  // before any thread starts, so that none takes these
    run = [&](executor& ex, net::device& device) { return serve(ex, device, listen_address, how, *signals); };
  });

  call_options calling;
  CLI::App& one = *app.add_subcommand("call", "call a method and print the answer");
  one.add_option("ADDRESS", calling.address, "the server")->type_name("HOST:PORT")->required();
  one.add_option("METHOD", calling.method,
                 "echo TEXT, sum NUMBER..., sleep MILLISECONDS, fetch BYTES (64K, 16M; by one-sided writes), fail TEXT")
      ->type_name("")
      ->required();
  one.add_option("ARGUMENT...", calling.words)->type_name("")->expected(0, -1);
  common::add_value(one, "--timeout", calling.timeout_seconds, "how long to wait for the answer", "SECONDS")
      .check(CLI::Range(0.001, 1e6));
  one.callback([&] { run = [&](executor& ex, net::device& device) { return ex.run(call(device, calling)); }; });

  rpc::bench_options measuring;
  std::string address;
  std::string size = "64";
  std::size_t milliseconds = 2000;
  double timeout_seconds = 5;
  CLI::App& measure = *app.add_subcommand("bench", "how many calls per second, and how long they take");
  measure.add_option("ADDRESS", address, "the server")->type_name("HOST:PORT")->required();
  measure.add_option("--concurrency", measuring.concurrency, "calls at a time")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  common::add_value(measure, "--size", size, "of what each call echoes or fetches: 64, 4K, 16M", "BYTES")
      .check(is_size);
  measure.add_flag("--fetch", measuring.fetch, "answers by one-sided writes, instead of echoes");
  measure.add_option("--milliseconds", milliseconds, "how long")
      ->check(CLI::Range(1, 3'600'000))
      ->capture_default_str();
  measure.add_option("--timeout", timeout_seconds, "of each call, in seconds")->check(CLI::Range(1e-6, 1e6));
  measure.callback([&] {
    measuring.bytes = rpc::parse_bytes(size);
    measuring.time = std::chrono::milliseconds(milliseconds);
    measuring.timeout = common::in_seconds<duration>(timeout_seconds);
    run = [&](executor& ex, net::device& device) { return ex.run(bench(device, address, measuring)); };
  });

  return common::run_program(app, argc, argv, [&] {
    auto device = common::open_device("rpc", device_name);
    executor ex;
    return run(ex, device);
  });
}
