// SPDX-License-Identifier: Apache-2.0
#include "prefill.hpp"

#include <weft/runtime/sleep.hpp>

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvcache {

prefill::prefill(std::unique_ptr<cache_memory> cache, const shape& of)
    : cache_(std::move(cache)), of_(of), numbers_(2 * std::size_t{of.pages}), pages_(of.pages) {
  std::iota(numbers_.begin(), numbers_.end(), 0u);
}

void prefill::begin(std::uint64_t sequence) {
  sequence_ = sequence;
  ready_ = 0;
  std::shuffle(numbers_.begin(), numbers_.end(), random_);
  for (std::uint32_t i = 0; i != of_.pages; ++i) pages_[i] = {.local = numbers_[i], .remote = i};
}

weft::task<> prefill::compute() {
  for (std::uint32_t layer = 0; layer != of_.layers; ++layer) {
    for (const auto& [local, page] : pages_) {
      const std::uint64_t place = local * of_.page_bytes() + layer * of_.block_bytes;
      const block_name name{.sequence = sequence_, .layer = layer, .page = page};
      co_await cache_->fill(place, name);
    }
    ready_ = layer + 1;
    advanced_.set();
    co_await weft::yield();
  }
}

weft::task<> prefill::until_ready(std::uint32_t layer) {
  while (ready_ <= layer) {
    advanced_.reset();
    co_await advanced_.wait();
  }
}

weft::net::block_list prefill::blocks_of(std::uint32_t layer, const weft::mr::remote_slice& target) const {
  const std::uint64_t before = layer * of_.block_bytes;  // the layers of the first page that are none of it
  return {.local = cache_->region().slice(before, cache_bytes(of_) - before),
          .remote = target.slice(before, of_.bytes() - before),
          .block_bytes = of_.block_bytes,
          .local_stride = of_.page_bytes(),
          .remote_stride = of_.page_bytes(),
          .blocks = pages_};
}

}  // namespace kvcache
