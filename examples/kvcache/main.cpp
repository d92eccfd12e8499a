// SPDX-License-Identifier: Apache-2.0
// Pushes the blocks of a key-value cache from where they are computed to where they are used: `kvcache --help`.
#include <weft/weft.hpp>

#include <CLI/CLI.hpp>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench.hpp"
#include "cache_memory.hpp"
#include "contents.hpp"
#include "protocol.hpp"
#include "pusher.hpp"
#include "server.hpp"
#include <common/network.hpp>
#include <common/program.hpp>

namespace {

using common::add_value;

/// What the command line asks for.
struct command {
  enum class verb { serve, push, bench } what = verb::serve;
  std::string address;
  kvcache::serve_options serve;
  kvcache::push_options push;
  kvcache::bench_options bench;
  bool tcp = false;
  bool memcpy = false;
  bool json = false;
  std::string device = "auto";
  double timeout_seconds = 30;
  double lend_seconds = 30;
  kvcache::memory_choice memory;

  void add_to(CLI::App& app);

 private:
  void add_serve(CLI::App& app);
  void add_push(CLI::App& app);
  void add_bench(CLI::App& app);
  CLI::Option* add_memory(CLI::App& verb_app, const char* meaning);
  void add_shape(CLI::App& verb_app, std::uint32_t& layers, std::uint64_t& block_bytes);
  void add_common(CLI::App& verb_app);
};

const CLI::Validator whole_words(
    [](std::string& text) {
      const bool fits = !text.empty() && text.size() < 12 &&
                        text.find_first_not_of("0123456789") == std::string::npos && std::stoull(text) != 0 &&
                        std::stoull(text) <= kvcache::most_block_bytes && std::stoull(text) % kvcache::word_bytes == 0;
      return fits ? std::string()
                  : fmt::format("not a multiple of {} up to {}: {}", kvcache::word_bytes, kvcache::most_block_bytes,
                                text);
    },
    "");

const CLI::Validator memory_name(
    [](std::string& text) {
      return kvcache::is_memory_name(text) ? std::string() : fmt::format("not host, cuda or cuda:NUMBER: {}", text);
    },
    "");

CLI::Option* command::add_memory(CLI::App& verb_app, const char* meaning) {
  auto* const name = add_value(verb_app, "--memory", memory.name, meaning, "host|cuda[:NUMBER]").check(memory_name);
  add_value(verb_app, "--cuda-library", memory.library, "the CUDA driver, where the system finds it by another name",
            "NAME");
  return name;
}

void command::add_common(CLI::App& verb_app) {
  common::add_device(verb_app, device);
  common::add_patience(verb_app, timeout_seconds);
}

void command::add_shape(CLI::App& verb_app, std::uint32_t& layers, std::uint64_t& block_bytes) {
  add_value(verb_app, "--layers", layers, "of each page, which has a block for each", "COUNT")
      .check(CLI::Range(1u, kvcache::most_layers));
  add_value(verb_app, "--block-bytes", block_bytes, "of each block", "BYTES").check(whole_words);
}

void command::add_serve(CLI::App& app) {
  CLI::App& serving = *app.add_subcommand("serve", "receive sequences, and check every byte of them");
  serving.add_option("ADDRESS", address, "where to listen; port 0 lets the system choose")
      ->type_name("HOST:PORT")
      ->required();
  add_value(serving, "--blocks,--pages", serve.pages, "of the cache", "COUNT")
      .check(CLI::Range(1u, kvcache::most_pages));
  add_shape(serving, serve.layers, serve.block_bytes);
  add_value(serving, "--lend-for", lend_seconds, "how long a sequence may take; then its pages are taken back",
            "SECONDS")
      .check(CLI::Range(0.001, 86400.0));
  serving.add_option("--evict-every", serve.evict_every, "of so many sequences, take one's pages back in the middle")
      ->check(CLI::Range(1u, 1'000'000'000u))
      ->type_name("COUNT");
  add_memory(serving, "of the cache: the host's, or a GPU's");
  add_common(serving);
  serving.callback([this] { what = verb::serve; });
}

void command::add_push(CLI::App& app) {
  CLI::App& pushing = *app.add_subcommand("push", "compute sequences, and push each to all of these receivers");
  pushing.add_option("ADDRESS", push.addresses, "the receivers")
      ->type_name("HOST:PORT")
      ->required()
      ->expected(1, INT_MAX);
  add_value(pushing, "--sequences", push.sequences, "how many", "COUNT").check(CLI::Range(1ull, 1'000'000'000'000ull));
  add_value(pushing, "--blocks,--pages", push.of.pages, "of each sequence", "COUNT")
      .check(CLI::Range(1u, kvcache::most_pages));
  add_shape(pushing, push.of.layers, push.of.block_bytes);
  add_memory(pushing, "of the cache that sequences are computed in: the host's, or a GPU's");
  add_common(pushing);
  pushing.callback([this] { what = verb::push; });
}

void command::add_bench(CLI::App& app) {
  CLI::App& measuring = *app.add_subcommand("bench", "measure how fast blocks get from one process to another");
  add_value(measuring, "--blocks", bench.blocks, "of each round, to random places", "COUNT")
      .check(CLI::Range(1u, kvcache::most_pages));
  add_value(measuring, "--block-bytes", bench.block_bytes, "of each block", "BYTES").check(whole_words);
  add_value(measuring, "--rounds", bench.rounds, "how many", "COUNT").check(CLI::Range(1u, 1'000'000u));
  auto* const direct =
      measuring.add_flag("--direct", bench.direct, "over shm: let the sender map the receiver's memory (docs/shm.md)");
  auto* const with_tcp = measuring.add_flag("--tcp", tcp, "plain TCP instead: writev and readv")->excludes(direct);
  measuring.add_flag("--spin", bench.spin, "with --tcp: do not sleep in system calls")->needs(with_tcp);
  auto* const with_memcpy =
      measuring.add_flag("--memcpy", memcpy, "a memcpy within one process instead")->excludes(with_tcp);
  add_memory(measuring, "at both ends: the host's, or a GPU's, whose copies alone are measured too")
      ->excludes(direct)
      ->excludes(with_tcp)
      ->excludes(with_memcpy);
  measuring.add_flag("--json", json, "print figures for programs");
  add_value(measuring, "--address", bench.address, "where the receiving process listens: an RDMA device has its own",
            "HOST:PORT")
      .excludes(with_tcp)
      ->excludes(with_memcpy);
  common::add_device(measuring, device);
  measuring.callback([this] {
    what = verb::bench;
    if (tcp) bench.way = kvcache::bench_way::tcp;
    if (memcpy) bench.way = kvcache::bench_way::memcpy;
    bench.device = device;
    bench.memory = memory;
  });
}

void command::add_to(CLI::App& app) {
  app.require_subcommand(1);
  add_serve(app);
  add_push(app);
  add_bench(app);
}

weft::task<int> run_verb(weft::net::device& device, command what) {
  if (what.what == command::verb::push) {
    const std::size_t failures = co_await kvcache::push(device, what.push);
    co_return failures == 0 ? common::success : common::failed;
  }
  auto listener = co_await device.listen(what.address);
  co_await kvcache::serve(device, listener, what.serve);
  co_return common::success;
}

int run_peers(command what) {
  // Before any thread starts, so that none takes these signals.
  weft::signal_set signals({SIGINT, SIGTERM});
  const auto gpu = kvcache::open_gpu(what.memory);
  what.serve.gpu = what.push.gpu = gpu.get();
  auto device = common::open_device("kvcache", what.device);
  what.serve.patience = what.push.patience = common::in_seconds<weft::duration>(what.timeout_seconds);
  what.serve.wait_for_pages = what.serve.patience / 2;  // a pusher that is as patient hears of it
  what.serve.lend_for = common::in_seconds<std::chrono::milliseconds>(what.lend_seconds);
  weft::executor loop;
  const auto ended = run_until_signal(loop, signals, run_verb(device, what));
  return common::exit_code_of(ended, "kvcache", what.what == command::verb::serve);
}

/// How fast the rounds of a measurement were, in GB/s.
struct rates {
  rates(const kvcache::bench_options& options, std::vector<double> seconds) : rounds(std::move(seconds)) {
    const double bytes = static_cast<double>(options.blocks) * static_cast<double>(options.block_bytes);
    for (double& each : rounds) each = bytes / each / 1e9;
    sorted = rounds;
    std::ranges::sort(sorted);
  }
  [[nodiscard]] double median() const { return sorted[sorted.size() / 2]; }

  std::vector<double> rounds;
  std::vector<double> sorted;
};

int run_bench(const command& what) {
  const auto& options = what.bench;
  const rates moved(options, kvcache::run_bench(options));
  std::optional<rates> copied;
  if (options.memory.name != "host") copied.emplace(options, kvcache::run_copies(options));
  if (what.json) {
    fmt::print(R"({{"blocks": {}, "block_bytes": {}, "gb_per_second": {:.4f}, "rounds": [{:.4f}])", options.blocks,
               options.block_bytes, moved.median(), fmt::join(moved.rounds, ", "));
    if (copied) fmt::print(R"(, "copies_gb_per_second": {:.4f})", copied->median());
    fmt::print("}}\n");
    return common::success;
  }
  fmt::print("{} blocks of {} bytes: {:.2f} GB/s (median of {} rounds, {:.2f} to {:.2f})\n", options.blocks,
             options.block_bytes, moved.median(), moved.sorted.size(), moved.sorted.front(), moved.sorted.back());
  if (copied)
    fmt::print("{:.2f} of the copies alone, from pinned host memory to {}: {:.2f} GB/s\n",
               moved.median() / copied->median(), options.memory.name, copied->median());
  return common::success;
}

int run(const command& what) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  ::signal(SIGPIPE, SIG_IGN);
  return what.what == command::verb::bench ? run_bench(what) : run_peers(what);
}

}  // namespace

// What escapes would be a mistake in the definition of the options. NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  CLI::App app("Pushes the blocks of a key-value cache to other machines, by lists of one-sided RDMA writes.",
               "kvcache");
  app.footer("Exit codes: 0 success, 1 failure, 2 wrong usage.");
  command what;
  what.add_to(app);
  return common::run_program(app, argc, argv, [&] { return run(what); });
}
