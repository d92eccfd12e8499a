// SPDX-License-Identifier: Apache-2.0
#include "bench_plan.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "cache_memory.hpp"

namespace kvcache {
namespace {

std::vector<std::uint32_t> shuffled(std::uint32_t count, std::mt19937& random) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::shuffle(numbers.begin(), numbers.end(), random);
  return numbers;
}

}  // namespace

block_name name_of_block(std::uint32_t number) noexcept { return {.sequence = 0, .layer = 0, .page = number}; }

std::size_t bytes_of(const bench_options& options) { return options.blocks * options.block_bytes; }

std::vector<weft::net::block_pair> pairs_of_round(const bench_options& options, std::uint32_t round) {
  std::mt19937 random(round);
  const auto from = shuffled(options.blocks, random);
  const auto to = shuffled(options.blocks, random);
  std::vector<weft::net::block_pair> pairs(options.blocks);
  for (std::size_t i = 0; i != pairs.size(); ++i) pairs[i] = {.local = from[i], .remote = to[i]};
  return pairs;
}

weft::mr::mapping make_source(const bench_options& options) {
  auto memory = host_memory(bytes_of(options));
  for (std::uint32_t i = 0; i != options.blocks; ++i) {
    fill_block({memory.data() + i * options.block_bytes, options.block_bytes}, name_of_block(i));
  }
  return memory;
}

weft::mr::mapping make_target(const bench_options& options) { return host_memory(bytes_of(options), options.direct); }

void check_target(const bench_options& options, std::uint32_t round, std::span<const std::byte> target) {
  for (const auto& pair : pairs_of_round(options, round)) {
    const auto block = target.subspan(pair.remote * options.block_bytes, options.block_bytes);
    if (const auto byte = first_wrong(block, name_of_block(pair.local))) throw wrong_block(pair, *byte);
  }
}

failure wrong_block(const weft::net::block_pair& pair, std::size_t byte) {
  return failure(
      fmt::format("block {}, which has gone to place {}, is wrong at byte {}", pair.local, pair.remote, byte));
}

namespace {

std::vector<double> run_memcpy(const bench_options& options) {
  const auto source = make_source(options);
  const auto target = make_target(options);
  std::vector<double> seconds;
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    const auto pairs = pairs_of_round(options, round);
    const auto start = bench_clock::now();
    for (const auto& [from, to] : pairs) {
      std::memcpy(target.data() + to * options.block_bytes, source.data() + from * options.block_bytes,
                  options.block_bytes);
    }
    const std::chrono::duration<double> time = bench_clock::now() - start;
    if (round == 0) {
      check_target(options, round, {target.data(), bytes_of(options)});
    } else {
      seconds.push_back(time.count());
    }
  }
  return seconds;
}

}  // namespace

std::vector<double> run_bench(const bench_options& options) {
  switch (options.way) {
    case bench_way::weft:
      return run_weft(options);
    case bench_way::tcp:
      return run_tcp(options);
    case bench_way::memcpy:
      break;
  }
  return run_memcpy(options);
}

}  // namespace kvcache
