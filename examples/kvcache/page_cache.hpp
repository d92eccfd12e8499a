// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/slice.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/sync/mutex.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cache_memory.hpp"
#include "contents.hpp"

namespace kvcache {

class page_cache;

/// Pages that lie one behind the other in a cache, and go back there in the end: not before the peer that they were
/// lent to can no longer write there. Move-only.
class page_run {
 public:
  page_run(page_run&& other) noexcept
      : home_(std::exchange(other.home_, nullptr)), first_(other.first_), count_(other.count_) {}
  page_run& operator=(page_run&&) = delete;
  ~page_run();

  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  /// The memory of all of them.
  [[nodiscard]] weft::mr::slice slice() const;
  /// Where the block of a layer, in page name.page of these, is wrong: cache_memory::first_wrong().
  [[nodiscard]] weft::task<std::optional<std::size_t>> first_wrong(block_name name) const;

 private:
  friend class page_cache;
  page_run(page_cache& home, std::uint32_t first, std::uint32_t count) noexcept
      : home_(&home), first_(first), count_(count) {}

  page_cache* home_;  // null: moved from
  std::uint32_t first_;
  std::uint32_t count_;
};

/// The receiver's cache: registered memory in pages, each with a block for every layer. A sequence gets pages that lie
/// one behind the other, so that one key lets its pusher in there and nowhere else. On one executor.
class page_cache {
 public:
  /// The memory has so many pages, and is registered for weft::mr::usage::bind_window.
  page_cache(std::unique_ptr<cache_memory> memory, std::uint32_t pages, std::uint32_t layers,
             std::uint64_t block_bytes);

  /// Waits until so many pages are free, one behind the other, in the order of asking. At most pages().
  [[nodiscard]] weft::task<page_run> take(std::uint32_t count);

  [[nodiscard]] std::uint32_t pages() const noexcept { return static_cast<std::uint32_t>(in_use_.size()); }
  [[nodiscard]] std::uint32_t layers() const noexcept { return layers_; }
  [[nodiscard]] std::uint64_t block_bytes() const noexcept { return block_bytes_; }
  [[nodiscard]] std::uint64_t page_bytes() const noexcept { return layers_ * block_bytes_; }

 private:
  friend class page_run;
  [[nodiscard]] std::optional<std::uint32_t> first_fit(std::uint32_t count) const noexcept;
  void mark(std::uint32_t first, std::uint32_t count, bool in_use) noexcept;

  std::unique_ptr<cache_memory> memory_;
  std::uint32_t layers_;
  std::uint64_t block_bytes_;
  std::vector<bool> in_use_;
  weft::mutex turn_;   // of the task that waits for pages
  weft::event freed_;  // some were
};

}  // namespace kvcache
