// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/exposures.hpp>
#include <weft/net/link/find_workers.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

namespace weft::net::fabric {
namespace {

// How long the peer may take to answer that it does not use memory that was taken back.
constexpr auto fence_patience = std::chrono::seconds(5);

// The most questions without an answer.
constexpr std::size_t most_unanswered = 64;

}  // namespace

task<exposed_place> exposures::expose(mr::slice memory, mr::usage uses) {
  check_exposed_uses(uses);
  if (life_.has_ended()) throw error(errc::closed, "expose a buffer");
  if (memory.record()->region != nullptr && !device_.can_freeze()) {
    throw error(errc::not_supported,
                "expose a part of a region: this provider works on behind the program's back, so only a pool's buffers "
                "can be taken back from it");
  }
  items_.reserve(items_.size() + 1);
  auto made = std::make_unique<exposure>(*this);
  ++exposing_;
  struct guard {
    exposures& self;
    ~guard() {
      --self.exposing_;
      self.quiet_.set();
    }
  } const counted{*this};
  exposure& item = *made;
  const auto work = [&about = device_, &item, memory, uses, bound = endpoint_.get()] {
    item.region = register_region(about, memory.bytes(), rights_of_peers(uses), bound, "expose memory");
  };
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  {
    const weft::detail::stop_shield shield(promise);  // or a stop would leak the region
    co_await weft::detail::offload_for_resources(work);
  }
  const bool stopped = promise.get_stop_token().stop_requested();  // a stop takes precedence over the link's end
  if (life_.has_ended() || stopped) {
    const auto undo = [&item] { item.region.reset(); };
    const weft::detail::stop_shield shield(promise);
    co_await weft::detail::offload_for_resources(undo);
    throw error(stopped ? errc::canceled : errc::closed, "expose a buffer");
  }
  items_.push_back(std::move(made));
  // mutant: count the addresses
  const std::uint64_t address = device_.needs(FI_MR_VIRT_ADDR) ? reinterpret_cast<std::uintptr_t>(memory.data()) : 0;
  item.key = ::fi_mr_key(item.region.get());
  item.opened = {.address = address, .bytes = memory.size(), .rights = rights_of_peers(uses)};
  co_return exposed_place(item.key, address);
}

exposures::exposure* exposures::find(std::uint64_t key) const noexcept {
  // Skips exposures that were revoked, or were open to all, because the provider may have used their key again.
  const auto is_meant = [&](const auto& each) { return each->key == key && each->who == nullptr && !each->is_of_all; };
  const auto found = std::find_if(items_.begin(), items_.end(), is_meant);
  return found != items_.end() ? found->get() : nullptr;
}

bool exposures::allows(std::uint64_t key, std::uint64_t first, std::uint64_t length,
                       std::uint64_t needed) const noexcept {
  return std::any_of(items_.begin(), items_.end(), [&](const auto& each) {
    return each->state == exposure::open && each->key == key && each->opened.allows(first, length, needed);
  });
}

bool exposures::is_revoking(std::uint64_t key, std::uint64_t first, std::uint64_t length,
                            std::uint64_t needed) const noexcept {
  return std::any_of(items_.begin(), items_.end(), [&](const auto& each) {
    const bool is_meant = each->state == exposure::closing || each->state == exposure::asking;
    return is_meant && each->key == key && each->opened.allows(first, length, needed);
  });
}

void exposures::revoke(std::uint64_t key, revocation& who) noexcept {
  exposure* const item = find(key);
  if (item == nullptr) return who.revoked();
  if (item->state == exposure::closed) {
    if (!life_.is_leaving()) forget(*item);  // after begin_end() a worker iterates over the exposures
    return who.revoked();
  }
  const bool is_open = item->state == exposure::open;
  if (is_open) item->workers = find_workers(home_);  // before the last use begins, because withdraw() uses it
  {
    const std::lock_guard lock(end_mutex_);
    if (!endpoint_is_closed_) {
      item->who = &who;
      item->begin_last_use_of(who);
    }
  }
  if (item->who == nullptr) return who.revoked();
  if (is_open) close(*item);
}

bool exposures::invalidate(std::uint64_t key) noexcept {
  exposure* const item = find(key);
  if (item == nullptr || item->state != exposure::open) return false;
  item->is_by_peer = true;
  close(*item);
  return true;
}

// Closes the region: on a worker, because libfabric may block, if the executor runs and can take the result afterwards;
// otherwise on this thread.
void exposures::close(exposure& item) noexcept {
  item.state = exposure::closing;
  ++closing_;
  if (item.workers == nullptr) item.workers = find_workers(home_);
  try {
    if (worker_pool* const workers = item.workers) return workers->submit(item);
  } catch (...) {  // no worker could be started
    item.workers = nullptr;
  }
  item.run();
}

void exposures::exposure::close_region() noexcept {
  region.reset();
  hurry = waiting;
}

void exposures::exposure::run() noexcept {
  close_region();
  offer_last_use();
  all.home_.submit(*this);
}

bool exposures::exposure::withdraw() noexcept {
  worker_pool* const its = workers;
  if (its != nullptr && its->withdraw(*this)) return true;
  hurry_t expected = waiting;
  return hurry.compare_exchange_strong(expected, hurried);
}

// Releases the memory while a write may be in flight, so the device is frozen until the peer answers.
void exposures::exposure::run_here() noexcept {
  const bool was_queued = hurry != hurried;
  if (was_queued) {
    close_region();
    hurry = hurried;
  }
  executor_core& home = all.home_;
  all.device_.freeze();  // mutant: let memory go
  end_last_use();
  hurry = frozen;  // the exposure may be destroyed from here on, unless it was queued
  if (was_queued) home.submit(*this);
}

void exposures::exposure::settle() noexcept {
  hurry_t expected = waiting;
  if (hurry.compare_exchange_strong(expected, nobody)) return end_last_use();
  while (hurry == hurried) std::this_thread::yield();
  if (hurry.exchange(nobody) == frozen) all.device_.thaw();  // mutant: leave a device frozen
}

void exposures::region_closed(exposure& item) noexcept {
  --closing_;
  quiet_.set();
  ask(item);
}

// Queues a question to the peer about accesses in flight: some may have begun before the region was closed.
void exposures::ask(exposure& item) noexcept {
  ++asking_;
  item.state = exposure::asking;
  if (life_.is_leaving()) return;  // closing the endpoint ends the accesses
  // mutant: do not ask the peer
  if (life_.peer_has_left()) return settled(item);
  unasked_.push(item);
  owner_.has_questions();
}

bool exposures::ask_about(std::uint64_t key) noexcept try {
  items_.reserve(items_.size() + 1);
  auto made = std::make_unique<exposure>(*this);
  made->key = key;
  made->is_of_all = true;
  made->hurry = exposure::frozen;
  items_.push_back(std::move(made));
  ask(*items_.back());
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

std::optional<std::uint64_t> exposures::next_question() noexcept {
  if (unasked_.empty() || unanswered_ == most_unanswered) return std::nullopt;  // mutant: ask about everything
  exposure& item = unasked_.pop();
  item.is_asked = true;
  item.asked_at = home_.now();
  ++unanswered_;
  return item.key;
}

// Several exposures may have the same key, because a provider that chooses its keys may reuse one. Each question is
// answered in turn. When the peer is done, it says so once for all exposures of the key that it has reported in use.
bool exposures::take_answer(std::uint64_t key, bool under_way) noexcept {
  exposure* const in_use = next_asked(key, true);
  if (!under_way && in_use != nullptr) {
    for (exposure* each = in_use; each != nullptr && !life_.is_leaving(); each = next_asked(key, true)) settled(*each);
    return true;
  }
  exposure* const unanswered = next_asked(key, false);
  if (unanswered == nullptr) return false;
  --unanswered_;
  unanswered->in_use = under_way;
  if (!under_way) settled(*unanswered);
  return true;
}

// Finds the exposure of that key about which the peer was asked first. If `in_use`, searches the exposures that the
// peer has reported in use; if not, those about which it has not answered yet.
exposures::exposure* exposures::next_asked(std::uint64_t key, bool in_use) noexcept {
  exposure* oldest = nullptr;
  for (const auto& each : items_) {
    const bool is_meant = each->is_asked && each->key == key && each->in_use == in_use;
    if (is_meant && (oldest == nullptr || each->asked_at < oldest->asked_at)) oldest = each.get();
  }
  return oldest;
}

void exposures::peer_left() noexcept {
  unasked_.clear();
  for (std::size_t i = items_.size(); i-- != 0 && !life_.is_leaving();) {
    if (i < items_.size() && items_[i]->state == exposure::asking) settled(*items_[i]);
  }
}

std::optional<std::uint64_t> exposures::overdue() const noexcept {
  for (const auto& each : items_) {
    if (!each->is_asked) continue;
    const bool holds_all_up = each->hurry != exposure::waiting;
    const duration patience = holds_all_up ? duration(frozen_patience) : duration(fence_patience);
    if (home_.now() - each->asked_at >= patience) return each->key;
  }
  return std::nullopt;
}

void exposures::settled(exposure& item) noexcept {
  --asking_;
  item.is_asked = false;
  item.settle();
  revocation* const who = std::exchange(item.who, nullptr);
  const bool was_by_peer = item.is_by_peer;
  item.state = exposure::closed;
  if (who != nullptr || item.is_of_all) forget(item);
  if (who != nullptr) who->revoked();
  if (was_by_peer) owner_.invalidated();
}

void exposures::forget(exposure& item) noexcept {
  const auto place = std::find_if(items_.begin(), items_.end(), [&](const auto& each) { return each.get() == &item; });
  std::swap(*place, items_.back());
  items_.pop_back();
}

void exposures::begin_end() noexcept {
  for (const auto& item : items_) {
    if (item->state == exposure::open) item->state = exposure::swept;
  }
}

void exposures::close_regions() noexcept {
  for (const auto& item : items_) {
    if (item->state == exposure::swept) item->region.reset();
  }
}

void exposures::endpoint_closed() noexcept {
  {
    const std::lock_guard lock(end_mutex_);
    endpoint_is_closed_ = true;
  }
  for (const auto& item : items_) item->go_with_endpoint();
}

void exposures::tell_of_end() noexcept {
  for (const auto& item : items_) {
    if (item->who != nullptr) std::exchange(item->who, nullptr)->revoked();
  }
}

}  // namespace weft::net::fabric
