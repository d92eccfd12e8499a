// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/block_caches.hpp>
#include <weft/runtime/core/executor_core.hpp>

namespace weft::mr::detail {

void block_cache::submit() noexcept {
  if (!std::exchange(submitted_, true)) home_.submit(*this);
}

void block_cache::send(allocate_request& served) noexcept {
  served_.push_back(served);
  submit();
}

void block_cache::ask_for_blocks() noexcept {
  requested_.flush = true;  // mutant: what another executor keeps at hand
  submit();
}

void block_cache::ask_for_retry() noexcept {
  requested_.retry = true;
  submit();
}

block_cache::requests block_cache::open_mail(weft::detail::intrusive_list<allocate_request>& served) noexcept {
  submitted_ = false;
  served.splice_back(served_);
  return std::exchange(requested_, {});
}

std::unique_ptr<block_shelf> block_caches::reuse_shelf() noexcept {
  std::unique_ptr<block_shelf> item = std::move(idle_shelves_);
  if (item != nullptr) idle_shelves_ = std::move(item->next);
  return item;
}

// If a budget is direct, the other caches have been asked for their blocks already, so the new cache is asked too.
void block_caches::add(block_cache& item) noexcept {
  all_.push_front(item);
  bool wanted = false;
  for (const budget which : all_budgets) {
    if (is_direct(which)) {
      wanted = true;
    } else {
      item.shelf().open(which, item.home_);
    }
  }
  if (wanted) item.ask_for_blocks();
}

void block_caches::remove(block_cache& item) noexcept {
  all_.remove(item);
  for (const budget which : all_budgets) item.shelf().close(which);
  keep_shelf(std::move(item.shelf_));
}

void block_caches::keep_shelf(std::unique_ptr<block_shelf> item) noexcept {
  item->next = std::move(idle_shelves_);
  idle_shelves_ = std::move(item);
}

void block_caches::make_direct(budget which) noexcept {
  if (direct_[index_of(which)].exchange(true)) return;
  for (block_cache& each : all_) {
    each.shelf().close(which);
    each.ask_for_blocks();
  }
}

void block_caches::allow(budget which) noexcept {
  if (!direct_[index_of(which)].exchange(false)) return;
  for (block_cache& each : all_) each.shelf().open(which, each.home_);
}

void block_caches::ask_for_blocks() noexcept {
  for (block_cache& each : all_) each.ask_for_blocks();
}

std::size_t block_caches::bytes(budget which) const noexcept {
  std::size_t sum = 0;
  for (const block_cache& each : all_) sum += each.shelf_->bytes(which);
  return sum;
}

}  // namespace weft::mr::detail
