// SPDX-License-Identifier: Apache-2.0
// A disk over NVMe over Fabrics: `nvme --help`.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <common/network.hpp>
#include <common/printable.hpp>
#include <common/program.hpp>
#include <nvme/host_bench.hpp>
#include <nvme/host_commands.hpp>
#include <nvme/serve.hpp>
#include <nvme/sizes.hpp>

namespace {

using common::add_value;

const auto is_size = common::check_by(nvme::parse_size);

void add_size(CLI::App& to, const std::string& name, std::string& into, const std::string& words) {
  add_value(to, name, into, words, "SIZE").check(is_size);
}

// ---- the host ----

struct host_command {
  nvme::host_options how;
  std::string nqn;
  std::string offset = "0";
  std::string length;
  std::string bytes = "4K";
  std::string span = "0";
  double timeout_seconds = 30;
  double seconds = 5;
  bool by_command = false;
  bool direct = false;
  bool without_capsules = false;
  bool json = false;
  nvme::copy_options copying;
  nvme::bench_options measuring;

  // What was parsed as text.
  void complete() {
    how.timeout = common::in_seconds<std::chrono::milliseconds>(timeout_seconds);
    if (by_command) how.lends = nvme::lending::each_command;
    if (direct) how.lends = nvme::lending::direct;
    how.in_capsule = !without_capsules;
    if (!nqn.empty()) how.subsystem = nqn;
    how.log = [](std::string_view line) { fmt::print(stderr, "nvme: {}\n", common::printable(line)); };
    copying.offset = nvme::parse_size(offset);
    if (!length.empty()) copying.length = nvme::parse_size(length);
    measuring.name_space = copying.name_space;
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
  add_value(to, "--timeout", into.timeout_seconds, "how long a command may take", "SECONDS")
      .check(CLI::Range(0.01, 86'400.));
}

void add_queue_options(CLI::App& to, host_command& into) {
  add_value(to, "--namespace", into.copying.name_space, "which one", "ID");
  add_value(to, "--queues", into.how.queues, "for I/O", "COUNT").check(CLI::Range(1, 1024));
  add_value(to, "--depth", into.how.commands, "commands at a time on each of them", "COUNT").check(CLI::Range(1, 1000));
  auto* const windows =
      to.add_flag("--windows", into.by_command,
                  "lend each command its memory under a key of its own, which the target is asked to revoke");
  to.add_flag("--direct", into.direct, "have a target of this machine map the memory: it is to be trusted")
      ->excludes(windows);
  to.add_flag("--no-in-capsule", into.without_capsules, "send no data along with commands");
}

void add_bench_options(CLI::App& to, host_command& into) {
  add_value(to, "--write", into.measuring.write_percent, "percentage of writes, which destroy what the namespace holds",
            "PERCENT")
      .check(CLI::Range(0, 100));
  add_size(to, "--size", into.bytes, "of each command");
  add_size(to, "--span", into.span, "how much of the namespace to use; 0: all");
  add_value(to, "--seconds", into.seconds, "how long", "SECONDS").check(CLI::Range(0.001, 86'400.));
  to.add_option("--operations", into.measuring.operations, "or how many commands, if that is less");
  to.add_flag("--verify", into.measuring.verify, "check that what is read is what was written last");
  to.add_flag("--json", into.json, "for programs; times in nanoseconds");
}

using copy_function = weft::task<nvme::copy_result>(nvme::host&, nvme::copy_options);

weft::task<> copy(weft::net::device& device, const host_command& what, copy_function* how, std::string_view done) {
  const auto all = [&](nvme::host& through) -> weft::task<> {
    const auto result = co_await how(through, what.copying);
    fmt::print(stderr, "{} {} in {:.3f} s, {:.0f} MiB/s{}\n", done, nvme::format_size(result.bytes), result.seconds,
               static_cast<double>(result.bytes) / result.seconds / (1 << 20), what.copying.verify ? ", verified" : "");
  };
  co_await nvme::with_host(device, what.how, all);
}

weft::task<> bench(weft::net::device& device, host_command& what) {
  what.how.lane_bytes = std::max(what.measuring.bytes, nvme::identify_bytes);
  const auto all = [&](nvme::host& through) -> weft::task<> {
    const auto found = co_await nvme::run_bench(through, what.measuring);
    fmt::print("{}", what.json ? nvme::to_json(found, through, what.measuring) + "\n" : nvme::to_text(found));
    if (found.wrong != 0) throw std::runtime_error(fmt::format("{} reads found something else", found.wrong));
  };
  co_await nvme::with_host(device, what.how, all);
}

}  // namespace

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("NVMe over Fabrics on RDMA: a target that Linux mounts, and a host.", "nvme");
  app.footer("Exit codes: 0 success, 1 failure, 2 wrong usage.");
  std::string device_name = "auto";
  app.add_option("--device", device_name, "auto, or the transport by name: iwarp, verbs:mlx5_0")->type_name("NAME");
  app.require_subcommand(1);
  std::function<weft::task<>(weft::net::device&)> run;
  std::optional<weft::signal_set> signals;

  nvme::serve_options serving;
  std::vector<std::string> memory;
  CLI::App& serve = *app.add_subcommand("serve", "serve files and memory as the namespaces of a subsystem");
  serve.add_option("FILE", serving.files, "a file or a block device for each namespace")->type_name("");
  serve.add_option("--memory", memory, "a namespace in memory, behind those of files: 64M, 2G")
      ->check(is_size)
      ->type_name("SIZE");
  add_value(serve, "--listen", serving.listen_address, "where; 0.0.0.0 lets everybody in", "HOST:PORT");
  add_value(serve, "--nqn", serving.nqn, "the name of the subsystem", "NQN");
  serve.add_option("--allow", serving.allowed_hosts, "a host to let in, by its NQN, and none that is not named")
      ->type_name("NQN");
  serve.add_flag("--read-only", serving.read_only, "open the files for reading alone");
  add_value(serve, "--block-size", serving.block_bytes, "of all namespaces: 512, 4096", "BYTES");
  add_value(serve, "--queue-size", serving.most.queue_entries, "commands at a time on an I/O queue", "COUNT")
      .check(CLI::Range(2, 1024));
  serve.add_option("--advertise", serving.advertised, "where discovery sends hosts, if not to where it listens")
      ->type_name("HOST:PORT");
  serve.callback([&] {
    for (const std::string& each : memory) serving.memory.push_back(nvme::parse_size(each));
    signals.emplace({SIGINT, SIGTERM, SIGHUP});  // before there are other threads
    run = [&](weft::net::device& device) { return nvme::serve(device, serving, *signals); };
  });

  host_command hosting;
  const auto add_command = [&](const std::string& name, const std::string& words, bool needs_nqn, auto work) {
    CLI::App& made = *app.add_subcommand(name, words);
    add_host_options(made, hosting, needs_nqn);
    made.callback([&run, &hosting, work] {
      hosting.complete();
      run = work;
    });
    return &made;
  };
  add_command("ls", "list the subsystems of a target, or what is in one", false, [&](weft::net::device& device) {
    return hosting.nqn.empty() ? nvme::list_subsystems(device, hosting.how)
                               : nvme::list_namespaces(device, hosting.how);
  });
  CLI::App& reading = *add_command("read", "copy from a namespace to a file", true, [&](weft::net::device& device) {
    return copy(device, hosting, nvme::copy_out, "read");
  });
  CLI::App& writing = *add_command("write", "copy a file to a namespace", true, [&](weft::net::device& device) {
    return copy(device, hosting, nvme::copy_in, "wrote");
  });
  CLI::App& measure = *add_command("bench", "read, or write, at random places, and tell how long that takes", true,
                                   [&](weft::net::device& device) { return bench(device, hosting); });
  reading.add_option("FILE", hosting.copying.file, "- is the standard output")->type_name("")->required();
  add_size(reading, "--length", hosting.length, "how much; else up to the end");
  writing.add_option("FILE", hosting.copying.file, "what to write, whole")->type_name("")->required();
  writing.add_flag("--verify", hosting.copying.verify, "read back what was written, and compare it");
  for (CLI::App* const each : {&reading, &writing}) add_size(*each, "--offset", hosting.offset, "where: 4096, 64K, 1G");
  for (CLI::App* const each : {&reading, &writing, &measure}) add_queue_options(*each, hosting);
  add_bench_options(measure, hosting);

  return common::run_program(app, argc, argv, [&] {
    auto device = common::open_device("nvme", device_name);
    weft::executor here;
    try {
      here.run(run(device));
    } catch (const std::invalid_argument& wrong) {  // what the target has shows that the options make no sense
      throw CLI::ValidationError(wrong.what());
    }
    return common::success;
  });
}
