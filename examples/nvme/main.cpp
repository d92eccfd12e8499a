// SPDX-License-Identifier: Apache-2.0
// A disk over NVMe over Fabrics: `nvme --help`.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <common/network.hpp>
#include <common/printable.hpp>
#include <common/program.hpp>
#include <nvme/host_bench.hpp>
#include <nvme/host_commands.hpp>
#include <nvme/serve.hpp>
#include <nvme/sizes.hpp>

namespace {

const auto is_size = common::check_by(nvme::parse_size);

// ---- the host ----

struct host_command {
  nvme::host_options how;
  std::string nqn;
  std::string offset = "0";
  std::string length;
  std::string bytes = "4K";
  std::string span = "0";
  double timeout_seconds = 30;
  double keep_alive_seconds = 15;
  double seconds = 5;
  bool by_command = false;
  bool direct = false;
  bool without_capsules = false;
  bool json = false;
  nvme::copy_options copying;
  nvme::bench_options measuring;

  // What was parsed as text.
  void complete() {
    const auto milliseconds = [](double given) { return std::chrono::milliseconds(std::llround(given * 1000)); };
    how.timeout = milliseconds(timeout_seconds);
    how.keep_alive = milliseconds(keep_alive_seconds);
    if (by_command) how.lends = nvme::lending::each_command;
    if (direct) how.lends = nvme::lending::direct;
    how.in_capsule = !without_capsules;
    if (!nqn.empty()) how.subsystem = nqn;
    how.log = [](std::string_view line) { fmt::print(stderr, "nvme: {}\n", common::printable(line)); };
    copying.offset = nvme::parse_size(offset);
    if (!length.empty()) copying.length = nvme::parse_size(length);
    measuring.bytes = nvme::parse_size(bytes);
    measuring.span = nvme::parse_size(span);
    measuring.time = common::in_seconds<weft::duration>(seconds);
  }
};

void add_host_options(CLI::App& to, host_command& into, bool needs_nqn) {
  to.add_option("ADDRESS", into.how.address, "the target")->type_name("HOST:PORT")->required();
  auto* const nqn = to.add_option("NQN", into.nqn, "the subsystem")->type_name("");
  if (needs_nqn) nqn->required();
  to.add_option("--host-nqn", into.how.host_nqn, "who this host is; else a random name")->type_name("NQN");
  to.add_option("--timeout", into.timeout_seconds, "how long a command may take")
      ->check(CLI::Range(0.01, 86'400.))
      ->type_name("SECONDS")
      ->capture_default_str();
  to.add_option("--keep-alive", into.keep_alive_seconds, "the silence after which the controller gives this host up")
      ->check(CLI::Range(0.1, 86'400.))
      ->type_name("SECONDS")
      ->capture_default_str();
}

void add_queue_options(CLI::App& to, host_command& into) {
  to.add_option("--namespace", into.copying.name_space, "which one")->type_name("ID")->capture_default_str();
  to.add_option("--queues", into.how.queues, "for I/O")->check(CLI::Range(1, 1024))->capture_default_str();
  to.add_option("--depth", into.how.commands, "commands at a time on each of them")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  auto* const windows =
      to.add_flag("--windows", into.by_command,
                  "lend each command its memory under a key of its own, which the target is asked to revoke");
  to.add_flag("--direct", into.direct, "have a target of this machine map the memory: it is to be trusted")
      ->excludes(windows);
  to.add_flag("--no-in-capsule", into.without_capsules, "send no data along with commands");
}

void add_copy_options(CLI::App& to, host_command& into) {
  to.add_option("FILE", into.copying.file, "- is the standard output, or input")->type_name("")->required();
  to.add_option("--offset", into.offset, "where in the namespace: 4096, 64K, 1G")
      ->check(is_size)
      ->type_name("SIZE")
      ->capture_default_str();
  to.add_option("--length", into.length, "how much; else up to the end")->check(is_size)->type_name("SIZE");
}

using copy_function = weft::task<nvme::copy_result>(nvme::host&, nvme::copy_options);

weft::task<> copy(weft::net::device& device, host_command what, copy_function* how, std::string_view done) {
  const auto all = [&](nvme::host& through) -> weft::task<> {
    const auto result = co_await how(through, what.copying);
    fmt::print(stderr, "{} {} in {:.3f} s, {:.0f} MiB/s{}\n", done, nvme::format_size(result.bytes), result.seconds,
               static_cast<double>(result.bytes) / result.seconds / (1 << 20), what.copying.verify ? ", verified" : "");
  };
  co_await nvme::with_host(device, what.how, all);
}

weft::task<int> bench(weft::net::device& device, host_command what) {
  what.measuring.name_space = what.copying.name_space;
  what.how.lane_bytes = std::max(what.measuring.bytes, nvme::identify_bytes);
  int code = common::success;
  const auto all = [&](nvme::host& through) -> weft::task<> {
    const auto found = co_await nvme::run_bench(through, what.measuring);
    fmt::print("{}", what.json ? nvme::to_json(found, through, what.measuring) + "\n" : nvme::to_text(found));
    if (found.wrong != 0) code = common::failed;
  };
  co_await nvme::with_host(device, what.how, all);
  co_return code;
}

template <class T>
T run_here(weft::task<T> work) {
  weft::executor here;
  return here.run(std::move(work));
}

}  // namespace

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("NVMe over Fabrics on RDMA: a target that Linux mounts, and a host.", "nvme");
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
      return common::success;
    };
  });

  host_command hosting;
  CLI::App& list = *app.add_subcommand("ls", "list the subsystems of a target, or what is in one");
  add_host_options(list, hosting, false);
  list.callback([&] {
    hosting.complete();
    run = [&](weft::net::device& device) {
      run_here(hosting.nqn.empty() ? nvme::list_subsystems(device, hosting.how)
                                   : nvme::list_namespaces(device, hosting.how));
      return common::success;
    };
  });

  CLI::App& reading = *app.add_subcommand("read", "copy from a namespace to a file");
  add_host_options(reading, hosting, true);
  add_copy_options(reading, hosting);
  add_queue_options(reading, hosting);
  reading.callback([&] {
    hosting.complete();
    run = [&](weft::net::device& device) {
      run_here(copy(device, hosting, nvme::copy_out, "read"));
      return common::success;
    };
  });

  CLI::App& writing = *app.add_subcommand("write", "copy a file to a namespace");
  add_host_options(writing, hosting, true);
  add_copy_options(writing, hosting);
  add_queue_options(writing, hosting);
  writing.add_flag("--verify", hosting.copying.verify, "read back what was written, and compare it");
  writing.callback([&] {
    hosting.complete();
    run = [&](weft::net::device& device) {
      run_here(copy(device, hosting, nvme::copy_in, "wrote"));
      return common::success;
    };
  });

  CLI::App& measure = *app.add_subcommand("bench", "read, or write, at random places, and tell how long that takes");
  add_host_options(measure, hosting, true);
  add_queue_options(measure, hosting);
  measure
      .add_option("--write", hosting.measuring.write_percent,
                  "percentage of writes, which destroy what the namespace holds")
      ->check(CLI::Range(0, 100))
      ->type_name("PERCENT")
      ->capture_default_str();
  measure.add_option("--size", hosting.bytes, "of each command")
      ->check(is_size)
      ->type_name("SIZE")
      ->capture_default_str();
  measure.add_option("--span", hosting.span, "how much of the namespace to use; 0: all")
      ->check(is_size)
      ->type_name("SIZE")
      ->capture_default_str();
  measure.add_option("--seconds", hosting.seconds, "how long")
      ->check(CLI::Range(0.001, 86'400.))
      ->capture_default_str();
  measure.add_option("--operations", hosting.measuring.operations, "or how many commands, if that is less");
  measure.add_flag("--verify", hosting.measuring.verify, "check that what is read is what was written last");
  measure.add_flag("--json", hosting.json, "for programs; times in nanoseconds");
  measure.callback([&] {
    hosting.complete();
    run = [&](weft::net::device& device) { return run_here(bench(device, hosting)); };
  });

  return common::run_program(app, argc, argv, [&] {
    auto device = common::open_device("nvme", device_name);
    try {
      return run(device);
    } catch (const std::invalid_argument& wrong) {  // what the target has shows that the options make no sense
      throw CLI::ValidationError(wrong.what());
    }
  });
}
