// SPDX-License-Identifier: Apache-2.0
#include "bench_plan.hpp"

#include <weft/runtime/io/system_calls.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "contents.hpp"
#include "failure.hpp"

namespace kvcache {
namespace {

constexpr std::size_t page = weft::mr::mapping::huge_page_bytes;

std::size_t whole_pages(std::size_t bytes) noexcept { return (bytes + page - 1) / page * page; }

std::vector<std::uint32_t> shuffled(std::uint32_t count, std::mt19937& random) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::shuffle(numbers.begin(), numbers.end(), random);
  return numbers;
}

block_name name_of_block(std::uint32_t number) noexcept { return {.sequence = 0, .layer = 0, .page = number}; }

}  // namespace

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
  weft::mr::mapping memory(whole_pages(bytes_of(options)), true, -1, weft::system_calls::kernel());
  for (std::uint32_t i = 0; i != options.blocks; ++i) {
    fill_block({memory.data() + i * options.block_bytes, options.block_bytes}, name_of_block(i));
  }
  return memory;
}

weft::mr::mapping make_target(const bench_options& options) {
  const std::size_t bytes = whole_pages(bytes_of(options));
  if (options.direct) return weft::mr::mapping::in_memory_file(bytes, true, -1, weft::system_calls::kernel());
  return {bytes, true, -1, weft::system_calls::kernel()};
}

void check_target(const bench_options& options, std::uint32_t round, std::span<const std::byte> target) {
  for (const auto& [from, to] : pairs_of_round(options, round)) {
    const auto block = target.subspan(to * options.block_bytes, options.block_bytes);
    if (const auto place = first_wrong(block, name_of_block(from)))
      throw failure(fmt::format("block {}, which has gone to place {}, is wrong at byte {}", from, to, *place));
  }
}

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

}  // namespace kvcache
