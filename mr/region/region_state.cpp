// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device_memory.hpp>
#include <weft/mr/region/region_state.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/runtime/core/fork_guard.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <condition_variable>
#include <mutex>

namespace weft::mr {

namespace {

constinit std::mutex last_uses_mutex;
std::condition_variable last_use_ended;

}  // namespace

detail::region_state::region_state(std::shared_ptr<mr::registrar> from) noexcept : domain(std::move(from)) {
  static_cast<void>(weft::detail::unlock_in_children<last_uses_mutex>());
  home = domain.get();
  region = this;
}

detail::region_state::~region_state() { deregister(); }

std::size_t detail::region_state::size() const noexcept {
  if (ranges.empty()) return bytes.size();
  std::size_t sum = 0;
  for (const auto& range : ranges) sum += range.size();
  return sum;
}

std::span<const std::span<std::byte>> detail::region_state::all_ranges() const noexcept {
  if (ranges.empty()) return {&bytes, 1};
  return ranges;
}

bool detail::region_state::contains(std::span<const std::byte> part) const noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(part.data());
  return std::ranges::any_of(all_ranges(), [&](std::span<const std::byte> range) {
    const auto first = reinterpret_cast<std::uintptr_t>(range.data());
    return at >= first && at - first <= range.size() && part.size() <= range.size() - (at - first);
  });
}

void detail::region_state::set(const registration_options& wanted) noexcept {
  options = wanted;
  device = wanted.device;
  device_life = device != nullptr ? device->weak_from_this().lock() : nullptr;
  usage = wanted.usage;
}

void detail::region_state::register_now() {
  domain->register_now(*this, options);
  registered = true;
}

void detail::region_state::deregister() noexcept {
  end_last_uses();
  if (std::exchange(registered, false)) domain->deregister_now(*this);
}

void detail::region_state::let_go() noexcept {
  if (holders.fetch_sub(1, std::memory_order_acq_rel) == 1) dispose();
}

void detail::region_state::dispose() noexcept {
  std::unique_ptr<detail::region_state> self(this);
  if (!borrowed) run_on_worker(std::move(self));
}

bool detail::region_state::held_by_handle_alone() noexcept {
  const std::lock_guard lock(last_uses_mutex);
  return holders.load(std::memory_order_acquire) == 1 + last_use_count_;
}

void detail::region_state::check_unchanging(const char* what) const {
  if (changing) throw in_use(2, what);
}

error detail::region_state::in_use(std::uint32_t all_holders, const char* what) const {
  if (changing) {
    return {errc::busy, fmt::format("{} a region of {} bytes that is being refreshed or enabled", what, size())};
  }
  return {errc::busy,
          fmt::format("{} a region of {} bytes: {} operations and windows use it", what, size(), all_holders - 1)};
}

void detail::region_state::end_last_uses() noexcept {
  if (holders.load(std::memory_order_acquire) <= 1) return;
  std::unique_lock lock(last_uses_mutex);
  while (!last_uses_.empty()) {
    last_use* item = nullptr;
    for (last_use& each : last_uses_) {
      if (!each.withdraw()) continue;
      item = &each;
      break;
    }
    if (item == nullptr) {
      last_use_ended.wait(lock);
      continue;
    }
    lock.unlock();
    item->run_here();
    lock.lock();
  }
}

void detail::last_use::begin_last_use(region_pin pin) noexcept {
  if (pin.state_ == nullptr) return;
  const std::lock_guard lock(last_uses_mutex);
  state_ = std::exchange(pin.state_, nullptr);
  state_->last_uses_.push_front(*this);
  ++state_->last_use_count_;
}

void detail::last_use::end_last_use() noexcept {
  if (state_ == nullptr) return;
  region_state& target = *std::exchange(state_, nullptr);
  bool was_last = false;
  {
    const std::lock_guard lock(last_uses_mutex);
    target.last_uses_.remove(*this);
    --target.last_use_count_;
    was_last = target.holders.fetch_sub(1, std::memory_order_acq_rel) == 1;  // if not, `target` may be gone now
    last_use_ended.notify_all();
  }
  if (was_last) target.dispose();
}

void detail::last_use::offer_last_use() noexcept {
  const std::lock_guard lock(last_uses_mutex);
  last_use_ended.notify_all();
}

region_pin::region_pin(const slice& used) noexcept
    : state_(used.record() != nullptr ? used.record()->region : nullptr) {
  if (state_ != nullptr) hold(used);
}

void region_pin::hold(const slice& used) noexcept {
  if (used.record()->region == nullptr) return;
  [[maybe_unused]] const std::uint32_t before = used.record()->region->holders.fetch_add(1, std::memory_order_relaxed);
  assert(before != 0 && "a slice was used after its region had been released");
}

}  // namespace weft::mr
