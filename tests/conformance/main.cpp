// SPDX-License-Identifier: Apache-2.0
// The conformance suite; installed as weft-conformance, so that users can run it on a device of theirs.
#include <CLI/CLI.hpp>
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <string>

#include "peers.hpp"

namespace {

constexpr int wrong_usage = 2;

/// Chooses what to test; GoogleTest's own options are left alone.
void read_command_line(CLI::App& app, int argc, char** argv) {
  std::string address;
  std::string device = "auto";
  app.add_option("ADDRESS", address, "an address of the device, which plays both ends (default: the loopback)");
  app.add_option("--device", device, "the device: auto, iwarp, ... (default: auto)")->needs("ADDRESS");
  app.allow_extras();
  app.footer(
      "GoogleTest's options work as well: --gtest_list_tests, --gtest_filter=PATTERN, --gtest_output=xml:FILE.\n"
      "Exit codes: 0 all tests passed, 1 some failed, 2 wrong usage.");
  app.parse(argc, argv);
  for (const std::string& extra : app.remaining()) {
    if (!extra.starts_with("--gtest_")) throw CLI::ExtrasError({extra});
  }
  if (address.empty()) return;
  const auto opened = weft::net::device::open(device);
  std::printf("Testing %s on %s\n", std::string(opened.name()).c_str(), address.c_str());
  weft::test::choose_transport(device, address);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Tests whether a device keeps every promise of weft's connections.", "weft-conformance");
  try {
    read_command_line(app, argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& wrong) {
    std::fprintf(stderr, "weft-conformance: %s (weft-conformance --help)\n", wrong.what());
    return wrong_usage;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
