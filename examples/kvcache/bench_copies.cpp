// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device_memory.hpp>

#include "bench_plan.hpp"
#include "cache_memory.hpp"

namespace kvcache {
namespace {

/// Has the GPU carry out what `queue(stream)` puts into a stream.
template <class Queue>
void copy_all(weft::mr::copy_stream& stream, const Queue& queue) {
  queue(stream);
  const auto end = stream.mark().value();
  stream.synchronize();
  if (stream.reached().value() < end) throw failure("the GPU has not carried out all copies");
}

}  // namespace

std::vector<double> run_copies(const bench_options& options) {
  const auto gpu = open_gpu(options.memory);
  const pinned_memory source(gpu, make_source(options));
  const pinned_memory back(gpu, make_target(options));
  const weft::mr::device_memory target = gpu->allocate(bytes_of(options));
  const auto stream = gpu->open_stream();
  std::vector<double> seconds;
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    const auto pairs = pairs_of_round(options, round);
    const auto start = bench_clock::now();
    copy_all(*stream, [&](weft::mr::copy_stream& to) {
      for (const auto& [from, place] : pairs) {
        to.copy(target.data() + place * options.block_bytes, source.data() + from * options.block_bytes,
                options.block_bytes)
            .value();
      }
    });
    const std::chrono::duration<double> time = bench_clock::now() - start;
    if (round != 0) {
      seconds.push_back(time.count());
      continue;
    }
    copy_all(*stream, [&](weft::mr::copy_stream& to) { to.copy(back.data(), target.data(), target.size()).value(); });
    check_target(options, round, back.bytes());
  }
  return seconds;
}

}  // namespace kvcache
