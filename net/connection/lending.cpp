// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/lending.hpp>

#include <algorithm>
#include <cassert>

namespace weft::net {

lending::lending(std::shared_ptr<link_keys> keys)
    : keys_(std::move(keys)), link_(keys_->attached_.load(std::memory_order_relaxed)) {
  index made{this};
  unlisted_ = made.extract(made.begin());
}

void lending::run_on_executor() noexcept {
  const std::shared_ptr<link_keys> keys = keys_;
  keys->take(this);
}

void lending::revoked() noexcept {
  const std::unique_ptr<lending> self(this);
  if (recall_ == nullptr) return;
  region_ = {};
  recall_->buffer_ = std::move(buffer_);
  recall_->what_ = nullptr;
  recall_->revoked_.set();
}

recall::recall(lending* what) noexcept : what_(what) {
  what->recall_ = this;
  link_keys::end(what);
}

void link_keys::hand_over(lending* what, bool retiring) noexcept {
  const std::shared_ptr<link_keys> keys = what->keys_;
  what->retiring_ = retiring;
  if (!keys->mail(*what)) keys->take(what);
}

// Without a link there is no key, and detach() has forgotten the lending. With one, the executor stays for as long as
// detach() waits for us.
bool link_keys::mail(lending& what) noexcept {
  const std::lock_guard lock(mutex_);
  if (link_.load(std::memory_order_relaxed) == nullptr || home_.belongs_to_this_thread()) return false;
  home_.submit(what);
  return true;
}

link* link_keys::opener_of(const lending& what) const noexcept {
  link* const current = link_.load(std::memory_order_acquire);
  return current != nullptr && what.link_ == attached_.load(std::memory_order_relaxed) ? current : nullptr;
}

void link_keys::take(lending* what) noexcept {
  if (!what->retiring_ || what->confirmed_ || opener_of(*what) == nullptr) return let_go(what);
  what->retired_ = true;
  counters_.retired.add(1);
  counters_.retired_bytes.add(what->bytes_);
}

void link_keys::let_go(lending* what) noexcept {
  if (what->unlisted_.empty()) unlist(*what);
  if (what->retired_) {
    counters_.retired.subtract(1);
    counters_.retired_bytes.subtract(what->bytes_);
  }
  link* const target = opener_of(*what);
  target != nullptr ? target->revoke(what->key_, *what) : what->revoked();
}

void link_keys::opened(lending& what, const mr::remote_key& key, std::size_t bytes) noexcept {
  what.key_ = key;
  what.bytes_ = bytes;
  if (opener_of(what) == nullptr) return;
  what.listed_ = listed_.insert(std::move(what.unlisted_));
}

void link_keys::unlist(lending& what) noexcept { what.unlisted_ = listed_.extract(what.listed_); }

void link_keys::confirm(const mr::remote_key& key) noexcept {
  const auto [first, last] = listed_.equal_range(key.number());
  const auto found = std::find_if(first, last, [&key](const lending* item) { return item->key_ == key; });
  if (found == last) return;
  if ((*found)->retired_) return let_go(*found);
  (*found)->confirmed_ = true;
}

void link_keys::attach(link& target) noexcept {
  const std::lock_guard lock(mutex_);
  assert(link_.load(std::memory_order_relaxed) == nullptr && listed_.empty());
  attached_.fetch_add(1, std::memory_order_relaxed);
  link_.store(&target, std::memory_order_release);
}

// The lent ones belong to others, who may end them on other threads as soon as link_ is null.
void link_keys::detach() noexcept {
  lending* retired = nullptr;
  while (!listed_.empty()) {
    lending& item = **listed_.begin();
    unlist(item);
    if (item.retired_) item.next_ = std::exchange(retired, &item);
  }
  {
    const std::lock_guard lock(mutex_);
    link_.store(nullptr, std::memory_order_release);
  }
  while (retired != nullptr) let_go(std::exchange(retired, retired->next_));
}

}  // namespace weft::net
