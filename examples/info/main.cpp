// SPDX-License-Identifier: Apache-2.0
// Says what weft finds on this machine, and what hinders it: `weft-info --help`.
#include <weft/runtime/error.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/io/signal.hpp>
#include <weft/runtime/run_until_signal.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "checks.hpp"
#include "fabric_devices.hpp"
#include "inventory.hpp"
#include "machine.hpp"
#include "probe.hpp"
#include "report.hpp"
#include "server.hpp"
#include <common/printable.hpp>
#include <common/program.hpp>

namespace {

enum exit_code : int { nothing_hinders = common::success, something_hinders = common::failed };

/// What the command line asks for.
struct command {
  enum class verb { show, check, serve } what = verb::show;
  bool json = false;
  bool report = false;
  bool names = false;
  bool quiet = false;
  bool strict = false;
  std::string peer;  // empty: none
  std::string address = "0.0.0.0:7470";
  std::string fabric;  // empty: all
  double seconds = 3;

  void add_to(CLI::App& app);
};

void command::add_to(CLI::App& app) {
  app.require_subcommand(0, 1);
  app.add_flag("--json", json, "print JSON instead of text");
  CLI::App& checking =
      *app.add_subcommand("check", "say whether all is right for serious use, and what to do where it is not");
  checking
      .add_option("PEER", peer, "the address of a `weft-info serve`: what passes on the way there, over each fabric")
      ->type_name("HOST:PORT");
  checking.add_flag("--json", json, "print JSON instead of text");
  CLI::Option& reporting = *checking.add_flag(
      "--report", report, "print all as JSON for a hardware report, and try each fabric with both ends here");
  checking.add_flag("--names", names, "leave host names, addresses and GUIDs in the report")->needs(&reporting);
  checking.add_flag("--quiet", quiet, "leave out what is right");
  checking.add_flag("--strict", strict, "exit with 1 because of warnings, too");
  checking.add_option("--fabric", fabric, "try this one alone: shm, iwarp, verbs:NAME")->type_name("NAME");
  common::add_value(checking, "--timeout", seconds, "for each step on the way to the peer, or of the report", "S")
      .check(CLI::Range(0.1, 600.0));
  checking.callback([this] { what = verb::check; });
  CLI::App& serving = *app.add_subcommand("serve", "be the peer of a check, for anybody who can reach the address");
  common::add_value(serving, "ADDRESS", address, "where to listen, over every fabric that can be opened", "HOST:PORT");
  serving.add_option("--fabric", fabric, "listen over this one alone: shm, iwarp, verbs:NAME")->type_name("NAME");
  serving.callback([this] { what = verb::serve; });
}

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw weft::system_error(errno, "write to the standard output");
  }
}

int show(const command& wanted) {
  const info::inventory all = info::take_inventory(info::machine());
  print(wanted.json ? to_json(all) : to_text(all));
  return nothing_hinders;
}

// The peer's name, and that of the socket file where it is one.
std::string host_in(const std::string& peer) {
  return peer.starts_with("unix:") ? peer.substr(5) : peer.substr(0, std::min(peer.rfind(':'), peer.size()));
}

int check(const command& wanted) {
  const info::machine here;
  const info::inventory all = info::take_inventory(here);
  info::findings found = info::check_machine(here, all);
  info::peer_report peer;
  info::peer_report itself;
  const info::probe_options options{.patience = std::chrono::milliseconds(static_cast<int>(wanted.seconds * 1000)),
                                    .fabric = wanted.fabric,
                                    .all_operations = wanted.report};
  if (!wanted.peer.empty()) {
    peer = info::probe_peer(here, all, wanted.peer, options);
    info::check_peer(all, peer, found);
  }
  const info::peer_report* const peer_or_none = wanted.peer.empty() ? nullptr : &peer;
  if (wanted.report) {
    itself = info::probe_itself(all, options);
    info::check_itself(itself, found);
    info::mask names({here.read("/proc/sys/kernel/hostname").value_or(""), host_in(wanted.peer)});
    print(to_report(all, found, peer_or_none, itself, wanted.names ? nullptr : &names));
  } else if (wanted.json) {
    print(to_json(all, found, peer_or_none));
  } else {
    print((wanted.peer.empty() ? std::string() : to_text(peer)) + to_text(found, wanted.quiet));
  }
  const info::severity hindering = wanted.strict ? info::severity::warning : info::severity::error;
  const int code = found.worst() >= hindering ? something_hinders : nothing_hinders;
  // The resolver takes its own time, and leaving main() would wait for the worker that it keeps; as would a device that
  // hangs.
  if (peer.still_asks || itself.still_asks) std::quick_exit(code);
  return code;
}

// Those that cannot be opened, or do not have the address, are left out with a word.
std::vector<info::served_fabric> open_fabrics(const command& wanted) {
  const info::inventory all = info::take_inventory(info::machine());
  std::vector<info::served_fabric> fabrics;
  for (const weft::net::fabric_info& each : all.fabrics) {
    if (!info::is_asked_for(each, wanted.fabric)) continue;
    try {
      if (!each.why_not.empty()) throw weft::error(weft::errc::not_supported, each.why_not);
      auto places = info::places_to_listen(all, each.name, wanted.address);
      if (places.empty()) throw weft::error(weft::errc::wrong_device, "it does not have that address");
      fabrics.push_back({info::open_fabric(each.name), std::move(places)});
    } catch (const weft::error& why) {
      fmt::print(stderr, "weft-info: not over {}: {}\n", each.name, common::printable(why.what()));
    }
  }
  if (fabrics.empty()) throw weft::error(weft::errc::not_supported, "there is no fabric to listen over");
  return fabrics;
}

int serve(const command& wanted) {
  // Before any thread starts, so that none takes these signals.
  weft::signal_set signals({SIGINT, SIGTERM});
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  auto fabrics = open_fabrics(wanted);
  weft::executor loop;
  static_cast<void>(run_until_signal(loop, signals, info::serve(fabrics, wanted.address)));
  return nothing_hinders;
}

int run(const command& wanted) {
  switch (wanted.what) {
    case command::verb::show:
      break;
    case command::verb::check:
      return check(wanted);
    case command::verb::serve:
      return serve(wanted);
  }
  return show(wanted);
}

}  // namespace

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("Says what weft finds on this machine: fabrics, RDMA devices, ports, addresses and limits.",
               "weft-info");
  app.footer("Exit codes: 0 nothing hinders, 1 something does, 2 wrong usage.");
  command wanted;
  wanted.add_to(app);
  return common::run_program(app, argc, argv, [&] { return run(wanted); });
}
