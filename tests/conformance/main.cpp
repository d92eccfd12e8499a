// SPDX-License-Identifier: Apache-2.0
// The conformance suite; installed as weft-conformance, so that users can run it on a device of theirs.
#include <CLI/CLI.hpp>

#include <cstdio>

#include "late_writer.hpp"
#include "peers.hpp"

namespace {

constexpr int wrong_usage = 2;

/// What `late-writer` is asked for.
struct late_writer_command {
  std::string device = "auto";
  weft::test::late_writing how{.address = "127.0.0.1"};
  unsigned watch_ms = static_cast<unsigned>(how.watch.count());
};

CLI::App& add_late_writer(CLI::App& app, late_writer_command& asked) {
  CLI::App& command = *app.add_subcommand(
      "late-writer", "show whether memory that was taken back from a peer can still be written on a device");
  command.add_option("ADDRESS", asked.how.address, "an address of the device, which plays both ends")
      ->capture_default_str();
  command.add_option("--device", asked.device, "the device: auto, iwarp, ...")->capture_default_str();
  command.add_option("--rounds", asked.how.rounds, "times for each way to take memory back")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command.add_option("--connections", asked.how.connections, "connections that write at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--writes", asked.how.writes, "writes in flight on each")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--bytes", asked.how.bytes, "memory that is lent to each; the largest write")
      ->check(CLI::Range(8, 1 << 30))
      ->capture_default_str();
  command.add_option("--watch", asked.watch_ms, "milliseconds for which memory is watched once it is back")
      ->check(CLI::Range(1, 3'600'000))
      ->capture_default_str();
  command.footer("Exit codes: 0 no write landed late, 1 some did or it could not be tried, 2 wrong usage.");
  return command;
}

int run_late_writer(const late_writer_command& asked) {
  weft::test::late_writing how = asked.how;
  how.watch = std::chrono::milliseconds(asked.watch_ms);
  const auto open = [&] { return weft::net::device::open(asked.device); };
  std::printf("Writing late on %s, %s: %u connections, each with %u writes of 8 to %zu bytes\n",
              std::string(open().name()).c_str(), how.address.c_str(), how.connections, how.writes, how.bytes);
  return weft::test::print_late_writing(weft::test::write_late(open, how)) ? 0 : 1;
}

/// Chooses what to test; GoogleTest's own options are left alone.
void read_command_line(CLI::App& app, int argc, char** argv, const CLI::App& late_writer) {
  std::string address;
  std::string device = "auto";
  app.add_option("ADDRESS", address, "an address of the device, which plays both ends (default: the loopback)");
  std::string cuda;
  app.add_option("--device", device, "the device: auto, iwarp, ... (default: auto)")->needs("ADDRESS");
  app.add_option("--cuda", cuda, "the CUDA driver whose first GPU to test with: libcuda.so.1, ... (default: none)");
  app.allow_extras();
  app.footer(
      "GoogleTest's options work as well: --gtest_list_tests, --gtest_filter=PATTERN, --gtest_output=xml:FILE.\n"
      "Exit codes: 0 all tests passed, 1 some failed, 2 wrong usage.");
  app.parse(argc, argv);
  if (late_writer.parsed()) return;
  for (const std::string& extra : app.remaining()) {
    if (!extra.starts_with("--gtest_")) throw CLI::ExtrasError({extra});
  }
  weft::test::choose_cuda(cuda);
  if (address.empty()) return;
  const auto opened = weft::net::device::open(device);
  std::printf("Testing %s on %s\n", std::string(opened.name()).c_str(), address.c_str());
  weft::test::choose_transport(device, address);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Tests whether a device keeps every promise of weft's connections.", "weft-conformance");
  late_writer_command asked;
  const CLI::App& late_writer = add_late_writer(app, asked);
  try {
    read_command_line(app, argc, argv, late_writer);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& wrong) {
    std::fprintf(stderr, "weft-conformance: %s (weft-conformance --help)\n", wrong.what());
    return wrong_usage;
  }
  if (late_writer.parsed()) {
    try {
      return run_late_writer(asked);
    } catch (const std::exception& failure) {
      std::fprintf(stderr, "weft-conformance: %s\n", failure.what());
      return 1;
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
