// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/system/mapping.hpp>
#include <weft/net/list.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench.hpp"
#include "contents.hpp"
#include <common/failure.hpp>

namespace kvcache {

using common::failure;
using bench_clock = std::chrono::steady_clock;

/// All blocks of one end of a measurement.
[[nodiscard]] std::size_t bytes_of(const bench_options& options);

/// Which block goes where in that round: each goes somewhere, and something comes to each place.
[[nodiscard]] std::vector<weft::net::block_pair> pairs_of_round(const bench_options& options, std::uint32_t round);

/// What is in the sender's block of that number.
[[nodiscard]] block_name name_of_block(std::uint32_t number) noexcept;

/// The sender's blocks, each with contents of its own.
[[nodiscard]] weft::mr::mapping make_source(const bench_options& options);
/// The receiver's memory: a file in memory if the sender is to map it.
[[nodiscard]] weft::mr::mapping make_target(const bench_options& options);

/// Throws common::failure if a block of a round is not where it belongs.
void check_target(const bench_options& options, std::uint32_t round, std::span<const std::byte> target);
/// For a block that is wrong from that byte on.
[[nodiscard]] failure wrong_block(const weft::net::block_pair& pair, std::size_t byte);

// run_bench() by one way each.
[[nodiscard]] std::vector<double> run_weft(const bench_options& options);
[[nodiscard]] std::vector<double> run_tcp(const bench_options& options);

}  // namespace kvcache
