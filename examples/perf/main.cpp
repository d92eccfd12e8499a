// SPDX-License-Identifier: Apache-2.0
// Measures latency and bandwidth between two machines: `weft-perf --help`.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client.hpp"
#include "operations.hpp"
#include "protocol.hpp"
#include "server.hpp"
#include "test.hpp"
#include "units.hpp"
#include <common/network.hpp>
#include <common/program.hpp>

namespace {

constexpr const char* usual_address = "127.0.0.1:7471";
constexpr auto longest_warm_up = std::chrono::milliseconds(500);

/// What the command line asks for.
struct command {
  enum class verb { serve, run } what = verb::serve;
  std::string address = usual_address;
  std::string device = "auto";
  weft::poll_policy polling = weft::poll_policy::adaptive;
  double memory_mib = 1024;
  double resume_within_seconds = 0;
  bool direct = false;
  bool quiet = false;

  std::vector<std::string> operations = {"send", "write", "read"};
  std::vector<perf::quantity> quantities = {perf::quantity::latency, perf::quantity::bandwidth};
  std::string sizes = "64,1K,4K,64K,1M";
  bool sizes_are_given = false;
  std::uint16_t depth = 64;
  std::size_t connections = 1;
  std::optional<double> seconds;
  std::optional<std::uint64_t> iterations;
  std::uint64_t warm_up = 1000;
  perf::checking checksum = perf::checking::usual;
  bool json = false;
  std::string plot;

  void add_to(CLI::App& app);
  [[nodiscard]] std::vector<perf::test> tests() const;

 private:
  void add_common(CLI::App& verb_app);
  void add_checksum(CLI::App& verb_app, const std::string& words);
  void add_serve(CLI::App& app);
  void add_run(CLI::App& app);
};

std::string operation_names() {
  std::string names;
  for (const perf::operation& one : perf::all_operations()) names.append(names.empty() ? "" : ",").append(one.name);
  return names;
}

const auto check_sizes = common::check_by(perf::parse_sizes);

std::string check_operation(const std::string& name) {
  if (perf::find_operation(name) != nullptr) return {};
  return fmt::format("'{}' is not an operation: choose from {}", name, operation_names());
}

void command::add_common(CLI::App& verb_app) {
  const std::map<std::string, weft::poll_policy> policies = {{"spin", weft::poll_policy::spin},
                                                             {"adaptive", weft::poll_policy::adaptive},
                                                             {"sleep", weft::poll_policy::sleep}};
  verb_app
      .add_option_function<std::string>(
          "--poll", [this, policies](const std::string& name) { polling = policies.at(name); },
          "how this side waits: spin (fastest, takes a whole core), adaptive or sleep (default: adaptive)")
      ->check(CLI::IsMember({"spin", "adaptive", "sleep"}))
      ->type_name("HOW");
  common::add_device(verb_app, device);
  common::add_resume_within(verb_app, resume_within_seconds, "S");
  common::add_value(verb_app, "--memory", memory_mib, "limit of registered memory, in MiB; half of it is for receiving",
                    "MIB")
      .check(CLI::Range(16, 1 << 20));
}

void command::add_checksum(CLI::App& verb_app, const std::string& words) {
  const std::map<std::string, perf::checking> checks = {
      {"on", perf::checking::on}, {"off", perf::checking::off}, {"late", perf::checking::late}};
  verb_app
      .add_option_function<std::string>(
          "--checksum", [this, checks](const std::string& choice) { checksum = checks.at(choice); }, words)
      ->check(CLI::IsMember({"on", "off", "late"}))
      ->type_name("HOW");
}

void command::add_serve(CLI::App& app) {
  CLI::App& serving = *app.add_subcommand("serve", "be the other end of measurements, for any number of clients");
  common::add_value(serving, "ADDRESS", address,
                    "where to listen, or with rails at each: HOST:PORT+HOST:PORT; 0.0.0.0 lets everybody in, and there "
                    "are no passwords",
                    "HOST:PORT");
  serving.add_flag("--direct", direct, "clients of this machine map their memory, and use it without this process");
  serving.add_flag("--quiet", quiet, "no line for each test");
  add_checksum(serving,
               "CRC on the wire: on, off: only for clients that want it, or late: on, but large payloads are placed "
               "before they are checked, and all clients do the same (default: off)");
  add_common(serving);
  serving.callback([this] {
    what = verb::serve;
    if (checksum == perf::checking::usual) checksum = perf::checking::off;
  });
}

void command::add_run(CLI::App& app) {
  CLI::App& running = *app.add_subcommand("run", "measure");
  running.add_option("ADDRESS", address, "the server, or with rails its addresses: HOST:PORT+HOST:PORT")
      ->type_name("HOST:PORT")
      ->required();
  common::add_value(running, "--operations", operations, "which: any of " + operation_names(), "NAMES")
      .delimiter(',')
      ->check(CLI::Validator(check_operation, "", ""));
  const std::map<std::string, std::vector<perf::quantity>> choices = {
      {"latency", {perf::quantity::latency}},
      {"bandwidth", {perf::quantity::bandwidth}},
      {"both", {perf::quantity::latency, perf::quantity::bandwidth}}};
  running
      .add_option_function<std::string>(
          "--measure", [this, choices](const std::string& name) { quantities = choices.at(name); },
          "latency (one operation at a time), bandwidth (--depth of them) or both (default: both)")
      ->check(CLI::IsMember({"latency", "bandwidth", "both"}))
      ->type_name("WHAT");
  auto* const which_sizes =
      common::add_value(running, "--sizes", sizes,
                        "bytes of an operation: 64,4K,1M, or powers of two: 64-1M, all (1-4M)", "LIST")
          .check(CLI::Validator(check_sizes, "", ""));
  common::add_value(running, "--depth", depth, "operations in flight on each connection, for bandwidth", "N")
      .check(CLI::Range(1, int{perf::most_depth}));
  common::add_value(running, "--connections", connections, "used at the same time", "N").check(CLI::Range(1, 10000));
  auto* const time = running.add_option("--seconds", seconds, "how long each test takes (default: 1)")
                         ->check(CLI::Range(0.001, 86400.0))
                         ->type_name("S");
  running.add_option("--iterations", iterations, "or how many operations, of all connections together")
      ->check(CLI::Range(std::uint64_t{1}, UINT64_MAX))
      ->type_name("N")
      ->excludes(time);
  common::add_value(running, "--warm-up", warm_up,
                    "operations before each test that do not count; at most half a second of them", "N");
  add_checksum(
      running,
      "CRC on the wire: on, off, or late: on, but large payloads are placed before they are checked, for which "
      "the server has to be told the same (default: on elsewhere than over the loopback)");
  running.add_flag("--json", json, "print JSON instead of a table");
  running.add_option("--plot", plot, "draw latency and bandwidth over size into this file, as SVG")->type_name("FILE");
  add_common(running);
  running.callback([this, which_sizes] {
    what = verb::run;
    sizes_are_given = which_sizes->count() != 0;
  });
}

void command::add_to(CLI::App& app) {
  app.require_subcommand(1);
  add_serve(app);
  add_run(app);
}

std::vector<perf::test> command::tests() const {
  perf::budget length;
  if (iterations) {
    length.operations = *iterations;
  } else {
    length.time = common::in_seconds<weft::duration>(seconds.value_or(1));
  }
  std::vector<perf::test> all;
  for (const std::string& name : operations) {
    for (const perf::quantity quantity : quantities) {
      const perf::operation* const operation = perf::find_operation(name);
      const auto wanted = operation->fixed_size != 0 ? std::vector{operation->fixed_size} : perf::parse_sizes(sizes);
      for (const std::uint32_t size : wanted) {
        all.push_back({.what = operation,
                       .measures = quantity,
                       .size = size,
                       .depth = quantity == perf::quantity::latency ? std::uint16_t{1} : depth,
                       .connections = connections,
                       .checksum = checksum,
                       .warm_up = {.operations = warm_up, .time = longest_warm_up},
                       .length = length,
                       .resume_within = common::in_seconds<std::chrono::milliseconds>(resume_within_seconds),
                       .optional = !sizes_are_given});
      }
    }
  }
  return all;
}

weft::task<int> run_verb(weft::net::device& device, const command& what) {
  if (what.what == command::verb::run) {
    perf::run_options options{
        .address = what.address, .tests = what.tests(), .polling = what.polling, .json = what.json, .plot = what.plot};
    co_await perf::run_tests(device, std::move(options));
    co_return common::success;
  }
  auto listener = co_await device.listen(what.address);
  const perf::serve_options options{
      .resume_within = common::in_seconds<std::chrono::milliseconds>(what.resume_within_seconds),
      .polling = what.polling,
      .checksum = what.checksum,
      .direct = what.direct,
      .quiet = what.quiet};
  co_await perf::serve(device, listener, options);
  co_return common::success;
}

int run(const command& what) {
  // Before any thread starts, so that none takes these signals.
  weft::signal_set signals({SIGINT, SIGTERM});
  std::setvbuf(stdout, nullptr, _IOLBF, 0);

  weft::net::device_options options;
  options.pool.max_bytes = static_cast<std::size_t>(what.memory_mib * (1 << 20));
  options.iwarp = perf::options_of(what.checksum);
  auto device = common::open_device("weft-perf", what.device, options);
  weft::executor_options how;
  how.policy = what.polling;
  weft::executor loop(how);
  const auto ended = run_until_signal(loop, signals, run_verb(device, what));
  return common::exit_code_of(ended, "weft-perf", what.what == command::verb::serve);
}

}  // namespace

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("Measures latency and bandwidth of RDMA operations between two processes or machines.", "weft-perf");
  app.footer("Exit codes: 0 success, 1 failure, 2 wrong usage.");
  command what;
  what.add_to(app);
  return common::run_program(app, argc, argv, [&] { return run(what); });
}
