// SPDX-License-Identifier: Apache-2.0
// A disk over NVMe over Fabrics: `nvme --help`.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <nvme/serve.hpp>
#include <nvme/sizes.hpp>

namespace {

enum exit_code : int { success = 0, failed = 1, wrong_usage = 2 };

std::string is_size(const std::string& text) {
  try {
    static_cast<void>(nvme::parse_size(text));
    return {};
  } catch (const std::invalid_argument& why) {
    return why.what();
  }
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("NVMe over Fabrics on RDMA: a target that Linux mounts.", "nvme");
  app.footer("Exit codes: 0 success, 1 failure, 2 wrong usage.");
  std::string device_name = "auto";
  app.add_option("--device", device_name, "auto, or the transport by name: iwarp, verbs:mlx5_0")->type_name("NAME");
  app.require_subcommand(1);
  std::function<int(weft::net::device&)> run;
  std::optional<weft::signal_set> signals;

  nvme::serve_options serving;
  std::vector<std::string> memory;
  std::string in_capsule = "16K";
  CLI::App& serve = *app.add_subcommand("serve", "serve files and memory as the namespaces of a subsystem");
  serve.add_option("FILE", serving.files, "a file or a block device for each namespace")->type_name("");
  serve.add_option("--memory", memory, "a namespace in memory, behind those of files: 64M, 2G")
      ->check(is_size)
      ->type_name("SIZE");
  serve.add_option("--listen", serving.listen_address, "where; 0.0.0.0 lets everybody in")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  serve.add_option("--nqn", serving.nqn, "the name of the subsystem")->type_name("NQN")->capture_default_str();
  serve.add_option("--allow", serving.allowed_hosts, "a host to let in, by its NQN, and none that is not named")
      ->type_name("NQN");
  serve.add_flag("--read-only", serving.read_only, "open the files for reading alone");
  serve.add_option("--block-size", serving.block_bytes, "of all namespaces: 512, 4096")
      ->type_name("BYTES")
      ->capture_default_str();
  serve.add_option("--threads", serving.threads, "executors for the queues")->check(CLI::Range(1, 256));
  serve.add_option("--queues", serving.most.io_queues, "I/O queues for each host")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  serve.add_option("--queue-size", serving.most.queue_entries, "commands at a time on an I/O queue")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  serve.add_option("--in-capsule", in_capsule, "data that a command may bring along; 0: none")
      ->check(is_size)
      ->type_name("SIZE")
      ->capture_default_str();
  serve.add_option("--advertise", serving.advertised, "where discovery sends hosts, if not to where they asked")
      ->type_name("HOST:PORT");
  serve.callback([&] {
    for (const std::string& each : memory) serving.memory.push_back(nvme::parse_size(each));
    serving.most.in_capsule_bytes = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(nvme::parse_size(in_capsule), std::numeric_limits<std::uint32_t>::max()));
    signals.emplace({SIGINT, SIGTERM, SIGHUP});  // before there are other threads
    run = [&](weft::net::device& device) {
      nvme::serve(device, serving, *signals);
      return success;
    };
  });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& wrong) {
    if (wrong.get_exit_code() == 0) return app.exit(wrong);
    fmt::print(stderr, "nvme: {} (nvme --help)\n", wrong.what());
    return wrong_usage;
  }
  auto device = weft::net::device::open(device_name);
  if (!device.passed_over().empty()) fmt::print(stderr, "nvme: {}\n", device.passed_over());
  return run(device);
} catch (const std::invalid_argument& wrong) {
  fmt::print(stderr, "nvme: {} (nvme --help)\n", wrong.what());
  return wrong_usage;
} catch (const std::exception& failure) {
  fmt::print(stderr, "nvme: {}\n", failure.what());
  return failed;
}
