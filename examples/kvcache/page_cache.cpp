// SPDX-License-Identifier: Apache-2.0
#include "page_cache.hpp"

namespace kvcache {

page_run::~page_run() {
  if (home_ != nullptr) home_->mark(first_, count_, false);
}

weft::mr::slice page_run::slice() const {
  const std::uint64_t page = home_->page_bytes();
  return home_->memory_->region().slice(first_ * page, count_ * page);
}

weft::task<std::optional<std::size_t>> page_run::first_wrong(block_name name) const {
  const std::uint64_t page = std::uint64_t{first_} + name.page;
  return home_->memory_->first_wrong(page * home_->page_bytes() + name.layer * home_->block_bytes(), name);
}

page_cache::page_cache(std::unique_ptr<cache_memory> memory, std::uint32_t pages, std::uint32_t layers,
                       std::uint64_t block_bytes)
    : memory_(std::move(memory)), layers_(layers), block_bytes_(block_bytes), in_use_(pages) {}

weft::task<page_run> page_cache::take(std::uint32_t count) {
  const auto turn = co_await turn_.lock();
  auto place = first_fit(count);
  while (!place) {
    freed_.reset();
    co_await freed_.wait();
    place = first_fit(count);
  }
  mark(*place, count, true);
  co_return page_run(*this, *place, count);
}

std::optional<std::uint32_t> page_cache::first_fit(std::uint32_t count) const noexcept {
  std::uint32_t found = 0;
  for (std::uint32_t page = 0; page != pages(); ++page) {
    found = in_use_[page] ? 0 : found + 1;
    if (found == count) return page + 1 - count;
  }
  return std::nullopt;
}

void page_cache::mark(std::uint32_t first, std::uint32_t count, bool in_use) noexcept {
  for (std::uint32_t page = first; page != first + count; ++page) in_use_[page] = in_use;
  if (!in_use) freed_.set();
}

}  // namespace kvcache
