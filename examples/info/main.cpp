// SPDX-License-Identifier: Apache-2.0
// Says what weft finds on this machine, and what hinders it: `weft-info --help`.
#include <weft/runtime/error.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <cstdio>
#include <exception>
#include <string>

#include "checks.hpp"
#include "inventory.hpp"
#include "machine.hpp"
#include "report.hpp"
#include <text/printable.hpp>

namespace {

enum exit_code : int { nothing_hinders = 0, something_hinders = 1, wrong_usage = 2 };

/// What the command line asks for.
struct command {
  enum class verb { show, check, serve } what = verb::show;
  bool json = false;
  bool quiet = false;
  bool strict = false;

  void add_to(CLI::App& app);
};

void command::add_to(CLI::App& app) {
  app.require_subcommand(0, 1);
  app.add_flag("--json", json, "print JSON instead of text");
  CLI::App& checking =
      *app.add_subcommand("check", "say whether all is right for serious use, and what to do where it is not");
  checking.add_flag("--json", json, "print JSON instead of text");
  checking.add_flag("--quiet", quiet, "leave out what is right");
  checking.add_flag("--strict", strict, "exit with 1 because of warnings, too");
  checking.callback([this] { what = verb::check; });
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

int check(const command& wanted) {
  const info::machine here;
  const info::inventory all = info::take_inventory(here);
  const info::findings found = info::check_machine(here, all);
  print(wanted.json ? to_json(all, found, nullptr) : to_text(found, wanted.quiet));
  return found.worst() >= (wanted.strict ? info::severity::warning : info::severity::error) ? something_hinders
                                                                                            : nothing_hinders;
}

int run(const command& wanted) {
  switch (wanted.what) {
    case command::verb::show:
      return show(wanted);
    case command::verb::check:
    case command::verb::serve:
      break;
  }
  return check(wanted);
}

}  // namespace

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("Says what weft finds on this machine: fabrics, RDMA devices, ports, addresses and limits.",
               "weft-info");
  app.footer("Exit codes: 0 nothing hinders, 1 something does, 2 wrong usage.");
  command wanted;
  wanted.add_to(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& wrong) {
    fmt::print(stderr, "weft-info: {} (weft-info --help)\n", wrong.what());
    return wrong_usage;
  }
  try {
    return run(wanted);
  } catch (const std::exception& why) {
    fmt::print(stderr, "weft-info: {}\n", text::printable(why.what()));
    return something_hinders;
  }
}
