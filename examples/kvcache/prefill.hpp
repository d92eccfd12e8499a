// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>
#include <weft/net/list.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "cache_memory.hpp"
#include "protocol.hpp"

namespace kvcache {

/// Computes a sequence, layer after layer, into pages of the pusher's own cache: any that are free there. It stands for
/// a model. On one executor.
class prefill {
 public:
  /// The cache has twice as many pages as a sequence, so that those of a sequence are never all of it. It has
  /// cache_bytes(of) bytes, and is registered for weft::mr::usage::write_src.
  prefill(std::unique_ptr<cache_memory> cache, const shape& of);
  [[nodiscard]] static std::uint64_t cache_bytes(const shape& of) noexcept { return 2 * of.bytes(); }

  /// Chooses pages for the next sequence: nobody pushes blocks of the last one any more.
  void begin(std::uint64_t sequence);
  /// Computes all layers of that sequence.
  [[nodiscard]] weft::task<> compute();
  /// Waits until a layer has been computed.
  [[nodiscard]] weft::task<> until_ready(std::uint32_t layer);

  /// A layer of each page, and where it goes in pages of that shape of a peer's. As long as that sequence lasts.
  [[nodiscard]] weft::net::block_list blocks_of(std::uint32_t layer, const weft::mr::remote_slice& target) const;

  [[nodiscard]] std::uint64_t sequence() const noexcept { return sequence_; }
  [[nodiscard]] const shape& of() const noexcept { return of_; }

 private:
  std::unique_ptr<cache_memory> cache_;
  shape of_;
  std::mt19937 random_;
  std::vector<std::uint32_t> numbers_;        // of all pages of the cache
  std::vector<weft::net::block_pair> pages_;  // of the sequence: ours, and the place in the peer's
  std::uint64_t sequence_ = 0;
  std::uint32_t ready_ = 0;  // layers
  weft::event advanced_;     // ready_ has
};

}  // namespace kvcache
