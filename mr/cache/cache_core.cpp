// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cache/cache_core.hpp>
#include <weft/mr/locked_memory.hpp>
#include <weft/mr/region/population.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <utility>

namespace weft::mr::detail {
namespace {

// A search for room passes over registrations that are in use or were leased again: at most this many, so that it is
// short even if all of the cache is in use.
constexpr std::size_t most_passed_over = 64;

// NOLINTNEXTLINE(performance-no-int-to-ptr)
const std::byte* const highest = reinterpret_cast<const std::byte*>(~std::uintptr_t{0});

std::size_t bytes_allowed(const domain& home, std::size_t wanted) noexcept {
  const auto locked = home.pins() ? locked_memory_limit() : std::nullopt;
  return locked ? std::min(*locked, wanted) : wanted;
}

bool precedes(const std::byte* a, const std::byte* b) noexcept { return std::less<>()(a, b); }

const std::byte* end_of(std::span<const std::byte> range) noexcept { return range.data() + range.size(); }

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) noexcept {
  return precedes(a.data(), end_of(b)) && precedes(b.data(), end_of(a));
}

bool contains(std::span<const std::byte> outer, std::span<const std::byte> inner) noexcept {
  return !precedes(inner.data(), outer.data()) && !precedes(end_of(outer), end_of(inner));
}

std::span<const std::byte> whole_pages_of(std::span<const std::byte> memory) noexcept {
  const std::size_t before = reinterpret_cast<std::uintptr_t>(memory.data()) % page_bytes();
  return {memory.data() - before, round_up(before + memory.size(), page_bytes())};
}

}  // namespace

cache_entry::cache_entry(std::shared_ptr<mr::domain> from, std::shared_ptr<cache_core> core,
                         const lease_request& wanted)
    : region_state(std::move(from)), of_allocation(wanted.allocation_), core_(std::move(core)) {
  bytes = wanted.memory_;
  set({.usage = wanted.usage_, .device = wanted.device_});
  borrowed = false;  // so the last holder has a worker deregister the memory, which still belongs to the user
  kept_index made{this};
  node_ = made.extract(made.begin());
}

cache_entry::~cache_entry() {
  core_->forget(*this);
  if (!registered) return;
  deregister();
  core_->deregistered(*this);
}

cache_core::cache_core(std::shared_ptr<mr::domain> home, const cache_options& options)
    : domain_(std::move(home)),
      max_bytes_(bytes_allowed(*domain_, options.max_bytes)),
      max_regions_(options.max_regions),
      monitored_(options.monitor != cache_monitor::none),
      workers_(weft::resource_workers(nullptr)) {
  if (monitored_) monitor_ = make_userfaultfd_monitor(*this);
}

void cache_core::refuse(std::span<std::byte> memory, mr::usage purpose) const {
  const auto refusal = [&](errc code, const std::string& why) {
    return error(code, fmt::format("lease {} bytes on {}: {}", memory.size(), domain_->name(), why));
  };
  if (is_parents())
    throw refusal(errc::not_supported, "the cache belongs to the parent process; make one in this process");
  if (memory.empty()) throw refusal(errc::zero_length, "a lease needs at least one byte");
  if (memory.data() == nullptr) throw refusal(errc::null_address, "a lease needs an address");
  if (is_everything(memory)) throw refusal(errc::invalid_argument, "everything is a region, and not leased");
  if (wraps_around(memory)) throw refusal(errc::out_of_range, "the memory wraps around");
  if (const mr::usage unknown = purpose & ~known_usages; unknown != mr::usage::none) {
    throw refusal(errc::unknown_usage, to_string(unknown));
  }
  throw refusal(errc::access_denied,
                fmt::format("usage {} gives peers access, which a lease cannot (register or expose the memory)",
                            to_string(purpose)));
}

// ---- looking up ----

cache_core::place cache_core::last_before(mr::usage purpose, const std::byte* begin) noexcept {
  const auto behind = kept_.upper_bound(cache_entry::by_place::place{purpose, begin});
  if (behind == kept_.begin() || (*std::prev(behind))->options.usage != purpose) return kept_.end();
  return std::prev(behind);
}

cache_entry* cache_core::search(const lease_request& wanted) noexcept {
  const std::byte* const begin = wanted.memory_.data();
  const place found = last_before(wanted.usage_, begin);
  if (found == kept_.end() || !contains((*found)->bytes, wanted.memory_)) return nullptr;
  if (!is_of_its_allocation(**found, wanted)) return nullptr;
  if ((*found)->bytes.data() == begin) recent(wanted.usage_, begin) = *found;
  return hold(**found);
}

void cache_core::forget_recent(const cache_entry& item) noexcept {
  cache_entry*& known = recent(item.options.usage, item.bytes.data());
  if (known == &item) known = nullptr;
}

// ---- registrations under way ----

cache_flight* cache_core::flight_for(const lease_request& waiter) const noexcept {
  for (cache_flight& item : flights_) {
    const cache_entry& entry = *item.entry_;
    if (entry.stale || item.unwatched_ || entry.options.usage != waiter.usage_) continue;
    if (contains(entry.bytes, waiter.memory_) && is_of_its_allocation(entry, waiter)) return &item;
  }
  return nullptr;
}

void cache_core::join(cache_flight& flight, lease_request& waiter) noexcept {
  waiter.flight_ = &flight;
  flight.waiters_.push(waiter);
}

bool cache_core::wait(lease_request& waiter) {
  if (waiter.device_ != nullptr) forget_former_allocations(waiter);
  // All that may be needed is made before the mutex is locked.
  const std::optional<error> no_worker(std::in_place, errc::no_memory,
                                       "register for a cache: no worker thread can be started");
  const auto self = shared_from_this();
  auto entry = std::make_unique<cache_entry>(domain_, self, waiter);
  auto made = std::make_unique<cache_flight>(self, std::move(entry));
  const bool all_told = knows_all();
  {
    const std::lock_guard lock(mutex_);
    if (all_told) waiter.entry_ = look_up(waiter);
    if (waiter.entry_ != nullptr) return false;
    if (cache_flight* const flight = all_told ? flight_for(waiter) : nullptr) {
      ++counts_.shared;
      join(*flight, waiter);
      return true;
    }
    ++counts_.misses;
    join(*made, waiter);
    flights_.push_front(*made);
  }
  try {
    workers_.submit(*made);
  } catch (...) {
    static_cast<void>(give_up(waiter));                // the waiter gets the exception itself
    static_cast<void>(land(*made, no_worker, false));  // other waiters may have joined
    throw;
  }
  static_cast<void>(made.release());  // its worker owns it now
  return true;
}

bool cache_core::give_up(lease_request& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  cache_flight* const flight = std::exchange(waiter.flight_, nullptr);
  return flight != nullptr && flight->waiters_.remove(waiter);
}

void cache_flight::run() noexcept {
  const std::shared_ptr<cache_core> core = core_;
  core->perform(std::unique_ptr<cache_flight>(this));
}

void cache_core::perform(std::unique_ptr<cache_flight> flight) noexcept {
  for (;;) {
    // Watches the memory before its pages are looked up for the registration, so that no later change is missed.
    const bool watched = watch(*flight);
    const std::optional<error> failure = enroll(*flight->entry_);
    if (land(*flight, failure, watched)) return;
    // The range was invalidated meanwhile: register it again.
    cache_entry& entry = *flight->entry_;
    if (!entry.registered) continue;
    entry.deregister();
    deregistered(entry);
  }
}

bool cache_core::watch(cache_flight& flight) noexcept {
  if (flight.entry_->device != nullptr) return true;  // not watched, because each lease asks the device
  const std::lock_guard one_at_a_time(watching_);
  if (monitor_ == nullptr) return true;
  cache_entry& entry = *flight.entry_;
  const auto note = [&](bool watched) {
    const std::lock_guard lock(mutex_);
    entry.watched = watched;
    flight.unwatched_ = !watched;
  };
  note(true);  // noted before the call, because a change may end the watch at once
  const bool watched = monitor_->watch(entry.bytes);
  if (!watched) note(false);
  return watched;
}

void cache_core::unwatch(cache_entry& item) noexcept {
  const std::lock_guard one_at_a_time(watching_);
  if (monitor_ == nullptr) return;
  unwatching_ = &item;
  monitor_->unwatch(item.bytes);
  unwatching_ = nullptr;
}

std::span<const std::byte> cache_core::unneeded(std::span<const std::byte> range) const noexcept {
  const std::lock_guard lock(mutex_);
  if (!unwatching_->watched) return {};
  const std::byte* first = range.data();
  const std::byte* last = end_of(range);
  const auto visit_others = [&](const auto& visit) {
    visit_overlapping({first, last}, [&](const cache_entry& each) {
      if (&each != unwatching_) visit(whole_pages_of(each.bytes));
    });
  };
  for (const std::byte* before = nullptr; before != first && first != last;) {
    before = first;
    visit_others([&](std::span<const std::byte> needed) {
      if (!precedes(first, needed.data())) first = std::max(first, std::min(last, end_of(needed)));
    });
  }
  visit_others([&](std::span<const std::byte> needed) { last = std::min(last, needed.data()); });
  return {first, last};
}

std::optional<error> cache_core::enroll(cache_entry& item) noexcept {
  if (population::wanted(item)) {
    population pages(item);
    while (pages.next()) {
    }
  }
  const auto attempt = [&]() -> std::optional<error> {
    try {
      item.register_now();
      registered_bytes_.fetch_add(item.bytes.size(), std::memory_order_relaxed);
      return std::nullopt;
    } catch (const error& why) {
      return why;
    } catch (const std::exception& why) {
      return weft::detail::make_error(errc::no_memory, why.what());
    }
  };
  std::optional<error> failure = attempt();
  if (!failure || failure->code() != errc::no_memory) return failure;
  cache_entry* idle = nullptr;
  {
    const std::lock_guard lock(mutex_);
    idle = take_idle();
  }
  if (idle == nullptr) return failure;
  bury_here(idle);
  return attempt();
}

// Ends the flight and serves its waiters. False if the registration has to be repeated instead.
bool cache_core::land(cache_flight& flight, const std::optional<error>& failure, bool watched) noexcept {
  cache_entry* dead = nullptr;
  {
    weft::detail::remote_wake_ups served;
    if (!settle(flight, failure, watched, served, dead)) return false;
  }
  bury_here(dead);
  return true;
}

bool cache_core::settle(cache_flight& flight, const std::optional<error>& failure, bool watched,
                        weft::detail::remote_wake_ups& served, cache_entry*& dead) noexcept {
  const std::lock_guard lock(mutex_);
  cache_entry& entry = *flight.entry_;
  if (entry.stale && !failure && !flight.waiters_.empty() && !closed_) {
    entry.stale = false;
    ++counts_.begun_anew;
    return false;
  }
  flights_.remove(flight);
  static_cast<void>(flight.entry_.release());
  list(entry);
  const bool use = !failure && (!flight.waiters_.empty() || !entry.stale);
  bool kept = false;
  if (use) {
    entry.generation = ++registrations_;
    // A different allocation means that the one asked for was freed meanwhile.
    entry.stale = entry.stale || !watched || entry.allocation != entry.of_allocation;
    kept = !entry.stale && !closed_ && keep(entry, dead);
    if (!kept) ++counts_.not_kept;
  }
  std::uint32_t holders = kept ? 1 : 0;
  while (!flight.waiters_.empty()) {
    auto& waiter = static_cast<lease_request&>(flight.waiters_.pop());
    waiter.flight_ = nullptr;
    waiter.failure_ = failure;
    if (use) waiter.entry_ = &entry;
    if (use) ++holders;
    served.add(waiter);
  }
  entry.holders.store(holders, std::memory_order_relaxed);
  if (holders != 0) return true;
  entry.next_dead = dead;
  dead = &entry;
  return true;
}

// ---- keeping and evicting ----

void cache_core::list(cache_entry& item) noexcept {
  item.leased_ = leased_.insert(std::move(item.node_));
  item.listed_ = cache_entry::place::leased;
}

void cache_core::unlist(cache_entry& item) noexcept {
  if (item.listed_ == cache_entry::place::leased) item.node_ = leased_.extract(item.leased_);
  if (item.listed_ == cache_entry::place::kept) item.node_ = kept_.extract(item.kept_);
  item.listed_ = cache_entry::place::nowhere;
}

void cache_core::deregistered(const cache_entry& item) noexcept {
  registered_bytes_.fetch_sub(item.bytes.size(), std::memory_order_relaxed);
}

void cache_core::forget(cache_entry& item) noexcept {
  if (item.listed_ == cache_entry::place::nowhere || is_parents()) return;
  std::unique_lock lock(mutex_);
  if (item.watched) {
    lock.unlock();
    unwatch(item);
    lock.lock();
  }
  unlist(item);
}

// Moves the entry to the index of entries that are only leased, so that invalidations find it while it is held.
void cache_core::drop(cache_entry& item, cache_entry*& dead) noexcept {
  bytes_ -= item.bytes.size();
  forget_recent(item);
  take_out(item);
  unlist(item);
  list(item);
  if (item.holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  item.next_dead = dead;
  dead = &item;
}

bool cache_core::make_room(std::size_t bytes, cache_entry*& dead) noexcept {
  std::size_t passed_over = 0;
  while (kept_.size() >= max_regions_ || bytes > max_bytes_ - std::min(bytes_, max_bytes_)) {
    if (kept_.empty()) return false;
    cache_entry& item = oldest();
    const bool in_use = item.holders.load(std::memory_order_relaxed) != 1;
    if ((in_use || item.leased_again_) && passed_over++ < std::min(most_passed_over, 2 * kept_.size())) {
      item.leased_again_ = false;
      take_out(item);
      append(item);
      continue;
    }
    if (in_use) return false;
    ++counts_.evictions;
    drop(item, dead);
  }
  return true;
}

bool cache_core::keep(cache_entry& item, cache_entry*& dead) noexcept {
  const mr::usage purpose = item.options.usage;
  const std::span<const std::byte> range = item.bytes;
  if (range.size() > max_bytes_ || max_regions_ == 0) return false;
  if (const place found = last_before(purpose, range.data());
      found != kept_.end() && contains((*found)->bytes, range)) {
    return false;  // an entry that contains it was kept first
  }
  // The new entry serves every lease that an entry inside its range could, so the inner entries are dropped. They begin
  // inside the range; from the first entry that ends behind the range on, all entries end behind it.
  for (auto at = kept_.lower_bound(cache_entry::by_place::place{purpose, range.data()});
       at != kept_.end() && (*at)->options.usage == purpose && contains(range, (*at)->bytes);) {
    ++counts_.evictions;
    drop(**at++, dead);
  }
  if (!make_room(range.size(), dead)) return false;
  unlist(item);
  item.kept_ = kept_.insert(std::move(item.node_));
  item.listed_ = cache_entry::place::kept;
  append(item);
  bytes_ += range.size();
  return true;
}

cache_entry* cache_core::take_idle() noexcept {
  cache_entry* dead = nullptr;
  for (cache_link* item = order_.newer; item != &order_;) {
    auto& each = static_cast<cache_entry&>(*std::exchange(item, item->newer));
    if (each.holders.load(std::memory_order_relaxed) != 1) continue;
    ++counts_.evictions;
    drop(each, dead);
  }
  return dead;
}

// The kept entries of one usage that overlap the range are the last ones that begin before its end.
template <class Visit>
void cache_core::visit_overlapping(std::span<const std::byte> range, const Visit& visit) const noexcept {
  for (auto next = kept_.begin(); next != kept_.end();) {
    const mr::usage purpose = (*next)->options.usage;
    for (auto at = kept_.lower_bound(cache_entry::by_place::place{purpose, end_of(range)}); at != kept_.begin();) {
      cache_entry& each = **--at;
      if (each.options.usage != purpose || !precedes(range.data(), end_of(each.bytes))) break;
      visit(each);
    }
    next = kept_.upper_bound(cache_entry::by_place::place{purpose, highest});
  }
  for (auto next = leased_.begin(); next != leased_.end();) {
    const std::size_t size_class = cache_entry::size_class_of(**next);
    const auto longest = (std::uintptr_t{2} << (size_class - 1)) - 1;
    const auto begin = reinterpret_cast<std::uintptr_t>(range.data());
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const auto* const first = reinterpret_cast<const std::byte*>(begin - std::min(begin, longest));
    for (auto at = leased_.lower_bound(cache_entry::by_size::place{size_class, first});
         at != leased_.end() && cache_entry::size_class_of(**at) == size_class &&
         precedes((*at)->bytes.data(), end_of(range));
         ++at) {
      if (overlap((*at)->bytes, range)) visit(**at);
    }
    next = leased_.upper_bound(cache_entry::by_size::place{size_class, highest});
  }
  for (const cache_flight& item : flights_) {
    if (overlap(item.entry_->bytes, range)) visit(*item.entry_);
  }
}

template <class Predicate>
void cache_core::drop_stale_if(std::span<const std::byte> range, bool still_mapped, cache_entry*& dead,
                               const Predicate& is_stale) noexcept {
  cache_entry* kept = nullptr;
  visit_overlapping(range, [&](cache_entry& each) {
    if (!is_stale(each)) return;
    each.stale = true;
    each.watched = each.watched && still_mapped;
    if (each.listed_ != cache_entry::place::kept) return;
    each.next_dead = kept;
    kept = &each;
  });
  while (kept != nullptr) {
    ++counts_.invalidations;
    drop(*std::exchange(kept, kept->next_dead), dead);
  }
}

void cache_core::drop_stale(std::span<const std::byte> range, bool still_mapped, cache_entry*& dead) noexcept {
  drop_stale_if(range, still_mapped, dead, [](const cache_entry&) { return true; });
}

// Drops entries of other allocations at these addresses, because those allocations have been freed.
void cache_core::forget_former_allocations(const lease_request& wanted) noexcept {
  cache_entry* dead = nullptr;
  {
    const std::lock_guard lock(mutex_);
    drop_stale_if(wanted.memory_, true, dead,
                  [&](const cache_entry& each) { return !is_of_its_allocation(each, wanted); });
  }
  bury(dead);
}

void cache_core::invalidate(std::span<const std::byte> range) noexcept {
  cache_entry* dead = nullptr;
  {
    const std::lock_guard lock(mutex_);
    drop_stale(range, true, dead);
  }
  bury(dead);
}

bool cache_core::is_current(const cache_entry& item) const noexcept {
  const std::lock_guard lock(mutex_);
  return !item.stale && (!monitored_ || (!closed_ && knows_all()));
}

void cache_core::changed(std::span<const std::byte> range, bool still_mapped) noexcept {
  drop_stale(range, still_mapped, dead_);
}

void cache_core::clean_up() noexcept {
  cache_entry* dead = nullptr;
  {
    const std::lock_guard lock(mutex_);
    dead = std::exchange(dead_, nullptr);
  }
  bury_here(dead);
}

void cache_core::clear() noexcept {
  cache_entry* dead = nullptr;
  {
    const std::lock_guard lock(mutex_);
    dead = take_idle();
  }
  bury(dead);
}

void cache_core::close() noexcept {
  cache_entry* dead = nullptr;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dead = std::exchange(dead_, nullptr);
    while (!kept_.empty()) drop(oldest(), dead);
    for ([[maybe_unused]] const cache_flight& item : flights_) {
      assert(item.waiters_.empty() && "a cache was destroyed while a task waits for a lease");
    }
  }
  std::unique_ptr<memory_monitor> monitor;  // destroyed without the mutexes, which its threads may need
  {
    const std::lock_guard lock(watching_);
    monitor = std::move(monitor_);
  }
  bury(dead);
}

void cache_core::bury(cache_entry* dead) noexcept {
  while (dead != nullptr) {
    std::unique_ptr<background_job> item(std::exchange(dead, dead->next_dead));
    run_on_worker(std::move(item));
  }
}

void cache_core::bury_here(cache_entry* dead) noexcept {
  while (dead != nullptr) const std::unique_ptr<cache_entry> item(std::exchange(dead, dead->next_dead));
}

cache_statistics cache_core::statistics() const noexcept {
  const std::lock_guard lock(mutex_);
  cache_statistics all = counts_;
  all.regions = kept_.size();
  all.bytes = bytes_;
  all.registered_bytes = registered_bytes_.load(std::memory_order_relaxed);
  return all;
}

}  // namespace weft::mr::detail
