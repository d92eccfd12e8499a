// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device/copy_engine.hpp>
#include <weft/net/connection/lending.hpp>

#include <algorithm>
#include <cassert>

namespace weft::net {

lending::lending(std::shared_ptr<link_keys> keys, time_point until)
    : keys_(std::move(keys)),
      link_(keys_->attached_.load(std::memory_order_relaxed)),
      has_deadline_(until != time_point::max()) {
  index made{this};
  unlisted_ = made.extract(made.begin());
  if (has_deadline_) keys_->home_.arm(*this, until);
}

// Only a lending that was never opened is still armed. Such a lending is destroyed on the thread where it was made.
lending::~lending() {
  if (armed()) keys_->home_.disarm(*this);
  link_keys::end_copies(*this);
}

void lending::run_on_executor() noexcept {
  const std::shared_ptr<link_keys> keys = keys_;
  keys->take(this);  // mutant: key of what another executor drops
}

void lending::expired() noexcept {
  if (phase_ != phase::open) return;  // opened() will notice
  const std::shared_ptr<link_keys> keys = keys_;
  keys->take_back(this, exposure_end::deadline);
}

// Ends the loan, and deletes the lending unless an exposure still owns it. Such an exposure has the buffer itself.
void lending::revoked() noexcept {
  const std::unique_ptr<lending> unowned(is_owned_ ? nullptr : this);
  phase_ = phase::over;
  region_ = {};
  if (recall_ != nullptr) std::exchange(recall_, nullptr)->buffer_ = std::move(buffer_);
  tell();
}

// Closes the owner's key. This process itself does what peers ask for by that key, so no link has to be asked.
void link_keys::end_copies(lending& what) noexcept {
  mr::detail::copy_engine::close_key(std::exchange(what.owners_key_, 0));
}

void lending::tell() noexcept {
  while (watches_ != nullptr) {
    loan_watch& first = *watches_;
    watches_ = first.next_;
    first.of_ = nullptr;
    first.end_ = end_;
    first.over_.set();
  }
}

loan_watch::loan_watch(lending& of) noexcept : of_(&of) {
  if (of.phase_ == lending::phase::over) {
    of_ = nullptr;
    end_ = of.end_;
  } else {
    next_ = std::exchange(of.watches_, this);
  }
}

loan_watch::~loan_watch() {
  if (of_ == nullptr) return;
  loan_watch** place = &of_->watches_;
  while (*place != this) place = &(*place)->next_;
  *place = next_;
}

recall::recall(lending* what) noexcept : loan_watch(*what) {
  what->recall_ = this;
  link_keys::end(what);
}

void link_keys::hand_over(lending* what, bool retiring) noexcept {
  const std::shared_ptr<link_keys> keys = what->keys_;
  what->retiring_ = retiring;
  if (!keys->mail(*what)) keys->take(what);
}

// Without a link, the lending is unlisted and any thread may take it. With a link, the executor is alive, because
// detach() waits for this mutex.
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
  what->is_owned_ = false;
  const bool stays = what->retiring_ && !what->confirmed_ && what->phase_ == lending::phase::open;
  if (!stays || opener_of(*what) == nullptr) return take_back(what, exposure_end::owner);
  what->retired_ = true;
  counters_.retired.add(1);
  counters_.retired_bytes.add(what->bytes_);
}

void link_keys::take_back(lending* what, exposure_end why) noexcept {
  if (what->phase_ == lending::phase::closing) return;
  if (what->phase_ == lending::phase::over) return what->revoked();
  what->phase_ = lending::phase::closing;
  what->end_ = why;
  if (what->armed()) home_.disarm(*what);
  if (what->unlisted_.empty()) unlist(*what);
  if (what->retired_) {
    counters_.retired.subtract(1);
    counters_.retired_bytes.subtract(what->bytes_);
  }
  end_copies(*what);
  link* const target = what->is_of_link_ ? opener_of(*what) : nullptr;
  target != nullptr ? target->revoke(what->key_, *what) : what->revoked();
}

bool link_keys::opened(lending& what, std::uint64_t key, std::size_t bytes) noexcept {
  what.key_ = key;
  what.bytes_ = bytes;
  what.phase_ = lending::phase::open;
  if (opener_of(what) != nullptr) {
    what.listed_ = listed_.insert(std::move(what.unlisted_));
    return what.armed() || !what.has_deadline_;
  }
  if (what.armed()) home_.disarm(what);
  end_copies(what);
  what.end_ = exposure_end::connection;
  what.revoked();
  return true;
}

lending* link_keys::find(std::uint64_t key) noexcept {
  const auto [first, last] = listed_.equal_range(key);
  const auto found = std::find_if(first, last, [&key](const lending* item) { return item->key_ == key; });
  return found != last ? *found : nullptr;
}

void link_keys::confirm(std::uint64_t key) noexcept {
  lending* const found = find(key);
  if (found == nullptr) return;
  if (found->retired_) return take_back(found, exposure_end::owner);
  found->confirmed_ = true;
}

void link_keys::invalidated(std::uint64_t key) noexcept {
  if (lending* const found = find(key)) take_back(found, exposure_end::peer);
}

void link_keys::attach(link& target) noexcept {
  const std::lock_guard lock(mutex_);
  assert(link_.load(std::memory_order_relaxed) == nullptr && listed_.empty());
  attached_.fetch_add(1, std::memory_order_relaxed);
  link_.store(&target, std::memory_order_release);
}

// Exposures own the lendings that are not retired, and may end them on other threads as soon as link_ is null.
void link_keys::detach() noexcept {
  lending* retired = nullptr;
  while (!listed_.empty()) {
    lending& item = **listed_.begin();
    unlist(item);
    if (item.armed()) home_.disarm(item);
    if (item.retired_) {
      item.next_ = std::exchange(retired, &item);
    } else {
      end_copies(item);
      item.end_ = exposure_end::connection;
      item.revoked();
    }
  }
  {
    const std::lock_guard lock(mutex_);
    link_.store(nullptr, std::memory_order_release);
  }
  while (retired != nullptr) take_back(std::exchange(retired, retired->next_), exposure_end::connection);
}

}  // namespace weft::net
