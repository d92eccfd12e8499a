// SPDX-License-Identifier: Apache-2.0
// weft-stress: tries to break weft, from seeds, and repeats what did.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <fmt/format.h>

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "campaign.hpp"
#include "opponent.hpp"
#include "shrink.hpp"
#include "trial.hpp"

namespace weft::stress {
namespace {

using namespace std::chrono_literals;

struct options {
  std::uint64_t first = 0;
  std::uint64_t seeds = 2000;
  double minutes = 0;  // 0: as many seeds as were asked for
  std::uint64_t most_failures = 5;
  std::size_t tries = 2000;  // of shrinking
  std::uint64_t limit_seconds = 60;
  std::string script;
  bool print = false;
  bool fail_each = false;
  bool soaks = false;
  bool simulates = true;  // in a campaign
  std::vector<std::string> duels;
  std::string json;  // files
  std::string plot;
  std::string transport = "iwarp";  // of the simulation
  std::string serve;                // where
  bool simulated = false;
  bool sockets = false;
  sim::setting where;
  battleground real;
};

std::string known_device(const std::string& name) {
  const bool known = name == "iwarp" || name.starts_with("verbs:");
  return known ? "" : "\"" + name + "\" is neither iwarp nor verbs:NAME";
}

std::string more_than_none(const std::string& number) {
  return number.find_first_of("123456789") == std::string::npos || number.front() == '-' ? "it has to be more than 0"
                                                                                         : "";
}

/// How to choose it.
std::string option_of(const sim::setting& chosen) {
  if (chosen.where == sim::fabric::simulated) return "--sim";
  if (chosen.where == sim::fabric::simulated_rdma) return "--sim --transport verbs";
  if (chosen.where == sim::fabric::simulated_memory) return "--sim --transport shm";
  if (chosen.where == sim::fabric::simulated_rails) return "--sim --transport rails";
  return fmt::format("--device {} --address {}", chosen.device, chosen.address);
}

/// The same of the driver.
std::string driver_of(const sim::setting& chosen) {
  const char* const wanted = std::getenv("WEFT_EVENT_DRIVER");
  if (chosen.where != sim::fabric::real || wanted == nullptr) return "";
  return fmt::format("WEFT_EVENT_DRIVER={} ", wanted);
}

void try_out(const battleground& where) {
  if (!where.client_device.empty()) static_cast<void>(net::device::open(where.client_device));
  auto device = net::device::open(where.device);
  if (!where.far_host.empty()) return;  // the address is for that one to try
  executor running;
  const std::string at_any_port = where.address + ":0";
  const auto listen = [&]() -> task<> { static_cast<void>(co_await device.listen(at_any_port)); };
  running.run(listen());
}

/// Whether the devices and the address that the user has named can be used; if not, it has said why. Tries that in a
/// process of its own, because this one has to go on without threads, and without a device.
bool can_be_used(const battleground& where) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw system_error(errno, "fork(2)");
  if (child == 0) {
    try {
      try_out(where);
    } catch (const std::exception& why) {
      fmt::print(stderr, "weft-stress: {}\n", why.what());
      std::exit(2);
    }
    std::exit(0);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0;
}

void write_to(const std::string& file, const std::string& text) {
  if (file.empty()) return;
  std::ofstream to(file);
  to << text;
  if (!to.flush()) throw std::runtime_error("cannot write " + file);
}

void report_failure(const options& chosen, const verdict& how) {
  const std::chrono::seconds limit(chosen.limit_seconds);
  fmt::print("seed {} FAILED: {}\n", how.seed, how.why);
  const std::string fabric = option_of(chosen.where);
  fmt::print("  repeat it: {}weft-stress {} --first {} --seeds 1\n", driver_of(chosen.where), fabric, how.seed);
  std::fflush(stdout);
  if (chosen.tries == 0) return;
  const std::function<bool(const sim::script&)> fails = [&](const sim::script& what) {
    return try_script(what, limit, chosen.where).failed;
  };
  const sim::script whole = make_script(how.seed, chosen.where);
  if (!fails(whole)) {
    fmt::print("  it does not fail alone\n");
    return;
  }
  const sim::script small = shrink(whole, fails, chosen.tries);
  const std::string file = fmt::format("weft-stress-{}.json", how.seed);
  write_to(file, sim::to_text(small) + "\n");
  fmt::print("  cut down from {} to {} parts: {}\n{}\n  it says: {}\n  repeat it: weft-stress {} --script {}\n",
             sim::length_of(whole), sim::length_of(small), file, sim::to_text(small),
             try_script(small, limit, chosen.where).why, fabric, file);
}

void print(const tally& sum, std::chrono::duration<double> time) {
  fmt::print(
      "{} seeds, {} operations ({} of which had a reason to fail), {} faults, {} events, {:.0f} s in their own "
      "time, in {:.1f} s\n",
      sum.seeds, sum.operations, sum.failures, sum.faults, sum.events,
      std::chrono::duration<double>(sum.virtual_time).count(), time.count());
}

int play_seeds(const options& chosen) {
  constexpr std::uint64_t at_a_time = 100;  // for each child: long enough that starting it does not matter
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [start] { return std::chrono::steady_clock::now() - start; };
  const bool timed = chosen.minutes > 0;
  const std::chrono::duration<double> time_limit(chosen.minutes * 60);
  tally sum;
  std::uint64_t failures = 0;
  std::uint64_t next = chosen.first;
  const auto more = [&] { return timed ? elapsed() < time_limit : next < chosen.first + chosen.seeds; };
  while (more() && failures < chosen.most_failures) {
    const std::uint64_t count = timed ? at_a_time : std::min(at_a_time, chosen.first + chosen.seeds - next);
    const verdict how = try_seeds(next, count, std::chrono::seconds(chosen.limit_seconds), sum, chosen.where);
    next = how.failed ? how.seed + 1 : next + count;
    if (!how.failed) continue;
    ++failures;
    report_failure(chosen, how);
  }
  print(sum, elapsed());
  fmt::print("{} seeds failed\n", failures);
  return failures == 0 ? 0 : 1;
}

// Every call of the system that a small run makes fails once: the first in one run, the second in the next, and so on.
int fail_each_call(const options& chosen) {
  const std::chrono::seconds limit(chosen.limit_seconds);
  tally sum;
  std::uint64_t failures = 0;
  for (std::uint64_t seed = chosen.first; seed < chosen.first + chosen.seeds && failures < chosen.most_failures;
       ++seed) {
    sim::script what = make_small_script(seed, chosen.where);
    const verdict how = try_each_call(what, limit, sum, chosen.where);
    if (!how.failed) continue;
    ++failures;
    const std::string file = fmt::format("weft-stress-{}-{}.json", seed, what.failing_call);
    write_to(file, sim::to_text(what) + "\n");
    fmt::print("seed {}, call {} FAILED: {}\n  repeat it: weft-stress {} --script {}\n", seed, what.failing_call,
               how.why, option_of(chosen.where), file);
  }
  fmt::print("{} runs, in each of which one call fails: {} failed\n", sum.seeds, failures);
  return failures == 0 ? 0 : 1;
}

int play_script(const options& chosen) {
  std::stringstream text;
  text << std::ifstream(chosen.script).rdbuf();
  sim::script what;
  try {
    what = sim::parse_script(text.str());
  } catch (const std::exception& why) {
    throw std::runtime_error(fmt::format("{} is not a script: {}", chosen.script, why.what()));
  }
  const verdict how = try_script(what, std::chrono::seconds(chosen.limit_seconds), chosen.where);
  fmt::print("{}\n", how.failed ? "FAILED: " + how.why : "it does not fail");
  return how.failed ? 1 : 0;
}

int wage_campaign(const options& chosen, const std::string& command) {
  campaign_options what{.minutes = chosen.minutes,
                        .first = chosen.first,
                        .limit_seconds = chosen.limit_seconds,
                        .most_failures = chosen.most_failures,
                        .simulates = chosen.simulates,
                        .soaks = chosen.soaks,
                        .where = chosen.real,
                        .duels = chosen.duels};
  what.save = [&](const report& so_far) {
    report copy = so_far;
    copy.command = command;
    write_to(chosen.json, to_json(copy));
    write_to(chosen.plot, to_svg(copy));
  };
  what.save({});  // what cannot be written is better known now, and whoever cannot be reached
  if (!chosen.real.far_host.empty()) static_cast<void>(make_far_opponent(chosen.real));
  const report all = run_campaign(what);
  fmt::print("{}", to_text(all));
  what.save(all);
  return all.failures.empty() ? 0 : 1;
}

void add_options(CLI::App& app, options& chosen) {
  auto* const fabric = app.add_flag("--sim", chosen.simulated, "on the simulated fabric, which is the usual one");
  auto* const sockets = app.add_flag(
      "--iwarp", chosen.sockets,
      "with iWARP over this machine's loopback: without what only a simulation can do to it, and never twice the "
      "same. WEFT_EVENT_DRIVER chooses io_uring or epoll");
  sockets->excludes(fabric);
  auto* const device = app.add_option("--device", chosen.real.device, "the same on this device, such as verbs:rxe0");
  device->excludes(fabric)->check(known_device);
  app.add_option("--address", chosen.real.address, "of the device")->capture_default_str();
  app.add_option("--transport", chosen.transport,
                 "of the simulation: iwarp on simulated sockets, verbs on a simulated device, shm between simulated "
                 "processes of one machine, or rails: connections of two and three links, each of them one of the "
                 "first two")
      ->excludes(sockets)
      ->excludes(device)
      ->check(CLI::IsMember({"iwarp", "verbs", "shm", "rails"}))
      ->capture_default_str();
  app.add_option("--first", chosen.first, "the first seed")->capture_default_str();
  app.add_option("--seeds", chosen.seeds, "how many")->check(more_than_none)->capture_default_str();
  auto* const minutes = app.add_option(
      "--minutes", chosen.minutes,
      "instead: for how long. With no fabric chosen, a little of everything: simulated, and on a real device "
      "programs out of seeds and pairs of processes that are disturbed, with both drivers, or the one that "
      "WEFT_EVENT_DRIVER names; a second at least for each");
  minutes->check(more_than_none);
  app.add_option("--most-failures", chosen.most_failures, "stop after so many")
      ->check(more_than_none)
      ->capture_default_str();
  app.add_option("--tries", chosen.tries, "of cutting a failing run down; 0: do not")->capture_default_str();
  app.add_option("--limit", chosen.limit_seconds, "for one seed, in seconds")
      ->check(more_than_none)
      ->capture_default_str();
  app.add_option("--script", chosen.script, "play this script instead")->check(CLI::ExistingFile);
  app.add_flag("--fail-each", chosen.fail_each, "of small runs: let each call of the system fail in turn")
      ->excludes(sockets)
      ->excludes(device)
      ->excludes(minutes);
  app.add_flag("--print", chosen.print, "write the script of the first seed, and do not play it");
}

void add_options_of_duels(CLI::App& app, options& chosen) {
  std::vector<std::string> names;
  std::string help = "only these pairs of processes:";
  for (const duel& one : all_duels()) {
    names.emplace_back(one.name);
    help += fmt::format("\n{}: {}", one.name, one.words);
  }
  app.add_option("--duel", chosen.duels, help)
      ->check(CLI::IsMember(names))
      ->delimiter(',')
      ->excludes(app.get_option("--sim"))
      ->excludes(app.get_option("--fail-each"));
  app.add_option("--client-device", chosen.real.client_device, "in pairs of processes: the client's, if it is another")
      ->check(known_device);
  auto* const serve =
      app.add_option("--serve", chosen.serve,
                     "HOST:PORT to listen at; have the servers of pairs here, on --device and --address, for clients "
                     "on other machines. Whoever can connect may start them");
  app.add_option("--with", chosen.real.far_host, "HOST:PORT of a weft-stress --serve, which has the servers of pairs")
      ->excludes(serve);
  app.add_option("--disturb", chosen.real.disturbance,
                 "a command for the shell, run again and again while pairs of processes are at it: to cut a link, for "
                 "instance, and mend it. Connections may fail then");
  app.add_flag("--soak", chosen.soaks,
               "for hours: few pairs of processes, each of which lives long, and reports meanwhile");
  app.add_option("--json", chosen.json, "write the report of --minutes to this file");
  app.add_option("--plot", chosen.plot, "and draw rate, latency and memory over time, in SVG");
}

int run(int argc, char** argv) {
  options chosen;
  CLI::App app(
      "Tries to break weft, from seeds: each is a program of connections and operations with faults, on a "
      "simulated kernel and network, that repeats bit for bit.",
      "weft-stress");
  add_options(app, chosen);
  add_options_of_duels(app, chosen);
  CLI11_PARSE(app, argc, argv);
  if (!chosen.serve.empty()) serve_far_clients(chosen.real, chosen.serve);
  const bool on_device = app.count("--device") != 0 || !chosen.real.is_one_device();
  chosen.where.device = chosen.real.device;
  chosen.where.address = chosen.real.address;
  if (chosen.transport == "verbs") chosen.where.where = sim::fabric::simulated_rdma;
  if (chosen.transport == "shm") chosen.where.where = sim::fabric::simulated_memory;
  if (chosen.transport == "rails") chosen.where.where = sim::fabric::simulated_rails;
  if (chosen.sockets || on_device) chosen.where.where = sim::fabric::real;
  if (chosen.print) {
    fmt::print("{}\n", sim::to_text(make_script(chosen.first, chosen.where)));
    return 0;
  }
  const bool everything = chosen.minutes > 0 && !chosen.simulated && !chosen.sockets && chosen.script.empty();
  const bool wages_campaign = everything || !chosen.duels.empty() || chosen.soaks || !chosen.real.is_one_device();
  if (!wages_campaign && (!chosen.json.empty() || !chosen.plot.empty())) {
    throw std::runtime_error("--json and --plot are for a run of some --minutes");
  }
  if (wages_campaign || chosen.where.where == sim::fabric::real) {
    if (!can_be_used(chosen.real)) return 2;
  }
  chosen.simulates = chosen.duels.empty() && !on_device;
  if (wages_campaign) {
    if (chosen.minutes <= 0) chosen.minutes = 0.2;
    return wage_campaign(chosen, fmt::format("weft-stress {}", fmt::join(argv + 1, argv + argc, " ")));
  }
  if (chosen.fail_each) return fail_each_call(chosen);
  return chosen.script.empty() ? play_seeds(chosen) : play_script(chosen);
}

}  // namespace
}  // namespace weft::stress

// What the address sanitizer, where there is one, asks before main(); ASAN_OPTIONS has the last word. It would keep
// 256 MiB of what has been freed, which looks as if memory grew.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" [[gnu::no_sanitize_address]] const char* __asan_default_options() { return "quarantine_size_mb=16"; }

int main(int argc, char** argv) {
  ::setenv("WEFT_LOG", "failure,stall,warning,dump", 0);  // not the rails that every seed loses
  try {
    return weft::stress::run(argc, argv);
  } catch (const std::exception& why) {
    fmt::print(stderr, "weft-stress: {}\n", why.what());
    return 2;
  }
}
