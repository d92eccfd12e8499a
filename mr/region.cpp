// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/domain.hpp>
#include <weft/mr/porting/write_counter.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/region/population.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

#include <fmt/core.h>

#include <cassert>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>

namespace weft::mr {
namespace {

error in_use(const detail::region_state& target, std::uint32_t holders, const char* what) {
  if (target.changing) {
    return {errc::busy,
            fmt::format("{} a region of {} bytes that is being refreshed or registered anew", what, target.size())};
  }
  return {errc::busy,
          fmt::format("{} a region of {} bytes: {} operations and windows use it", what, target.size(), holders - 1)};
}

}  // namespace

detail::region_state::region_state(std::shared_ptr<mr::domain> from) noexcept : domain(std::move(from)) {
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

void detail::region_state::set(const registration_options& wanted) noexcept {
  options = wanted;
  kind = wanted.kind;
  usage = wanted.usage;
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

namespace {

std::mutex last_uses_mutex;
std::condition_variable last_use_ended;

}  // namespace

bool detail::region_state::held_by_handle_alone() noexcept {
  const std::lock_guard lock(last_uses_mutex);
  return holders.load(std::memory_order_acquire) == 1 + last_uses_;
}

void detail::region_state::end_last_uses() noexcept {
  if (holders.load(std::memory_order_acquire) <= 1) return;
  std::unique_lock lock(last_uses_mutex);
  while (first_last_use_ != nullptr) {
    last_use* item = first_last_use_;
    while (item != nullptr && !item->withdraw()) item = item->next_;
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
  next_ = std::exchange(state_->first_last_use_, this);
  if (next_ != nullptr) next_->previous_ = this;
  previous_ = nullptr;
  ++state_->last_uses_;
}

void detail::last_use::end_last_use() noexcept {
  if (state_ == nullptr) return;
  region_state& target = *std::exchange(state_, nullptr);
  bool was_last = false;
  {
    const std::lock_guard lock(last_uses_mutex);
    (previous_ != nullptr ? previous_->next_ : target.first_last_use_) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    --target.last_uses_;
    was_last = target.holders.fetch_sub(1, std::memory_order_acq_rel) == 1;  // unless it was, `target` may be gone now
    last_use_ended.notify_all();
  }
  if (was_last) target.dispose();
}

region::~region() {
  if (state_ == nullptr) return;
  if (state_->borrowed) {
    state_->end_last_uses();
    if (state_->holders.load() != 1) {
      weft::detail::terminate_because("a region that borrows its memory was destroyed while an operation uses it");
    }
    state_->deregister();
  }
  state_.take()->let_go();
}

std::span<std::byte> region::bytes_at(std::size_t offset, std::size_t length) const {
  detail::check_range(offset, length, size());
  for (const auto& range : state_->ranges) {
    if (offset >= range.size()) {
      offset -= range.size();
    } else if (length <= range.size() - offset) {
      return range.subspan(offset, length);
    } else {
      throw error(errc::out_of_range, fmt::format("a slice of {} bytes that lie in more than one range", length));
    }
  }
  return state_->bytes.subspan(offset, length);
}

slice region::slice(std::size_t offset, std::size_t length) const {
  if (state_ == nullptr || state_->ranges.empty()) return slice().subslice(offset, length);
  check_unchanging("a slice of");
  return {bytes_at(offset, length), state_.held()};
}

slice region::slice() const {
  if (!*this) return {};
  check_unchanging("a slice of");
  return {state_->bytes, state_.held()};
}

remote_region region::remote() const {
  check_unchanging("the key of");
  const mr::usage open = usage() & peer_usages;
  if (open == mr::usage::none) {
    throw error(errc::access_denied,
                fmt::format("a region of {} bytes registered for {} has no key for peers", size(), to_string(usage())));
  }
  return state_->domain->describe(*state_, size(), open);
}

void region::check_unchanging(const char* what) const {
  if (state_ == nullptr || !state_->changing) return;
  throw in_use(*state_, 2, what);
}

std::unique_ptr<detail::region_state> region::take(const char* what) {
  std::uint32_t alone = 1;
  if (!state_->holders.compare_exchange_strong(alone, 0, std::memory_order_acq_rel) &&
      !state_->held_by_handle_alone()) {
    throw in_use(*state_, alone, what);
  }
  return std::unique_ptr<detail::region_state>(state_.take());
}

void region::bind(const write_counter& counter) {
  if (!*this || state_->enabled) {
    throw error(errc::invalid_argument, "bind a counter to a region that is enabled: register it with `disabled`");
  }
  if (!overlaps(usage(), mr::usage::write_dst | mr::usage::atomic_dst | mr::usage::bind_window)) {
    throw error(
        errc::access_denied,
        fmt::format("bind a counter to a region registered for {}: no peer can write there", to_string(usage())));
  }
  if (state_->holders.load(std::memory_order_acquire) != 1) {
    throw error(errc::busy, "bind a counter to a region that is in use");
  }
  state_->domain->count_writes_of(*state_, counter.core_);
}

void region::enable() {
  check_unchanging("enable");
  if (*this && !enabled()) state_->domain->enable(*state_);
}

remote_writes_operation region::remote_writes(std::uint64_t n) const {
  if (!*this || state_->counter == nullptr) {
    throw error(errc::invalid_argument, "wait for writes of peers to a region that has no counter: see region::bind()");
  }
  return {state_->counter, n, region_pin(slice())};
}

namespace {

/// The time in which a worker changes what is registered. The region's handle keeps what it had, and may be moved; an
/// owning one may go, and its memory with this.
class change {
 public:
  change(detail::region_state& target, const char* what) : target_(target) {
    std::uint32_t alone = 1;
    if (!target.holders.compare_exchange_strong(alone, 2, std::memory_order_acq_rel)) {
      if (!target.held_by_handle_alone()) throw in_use(target, alone, what);
      target.holders.fetch_add(1, std::memory_order_relaxed);
    }
    target.changing = true;
  }
  change(const change&) = delete;
  change& operator=(const change&) = delete;
  ~change() {
    target_.changing = false;
    target_.let_go();
  }

 private:
  detail::region_state& target_;
};

// The state itself is written here alone, on its executor, and not by the worker.
template <class Work>
task<> work_on(detail::region_state& target, std::optional<registration>& item,
               std::span<const std::span<std::byte>> ranges, const registration_options& options, Work& work) {
  const weft::detail::stop_shield shield(co_await weft::detail::current_promise());
  std::exception_ptr failure;
  try {
    co_await detail::populate(*target.domain, ranges, options);
    co_await weft::detail::offload_for_resources(work);
  } catch (...) {
    failure = std::current_exception();
  }
  if (item) {
    target.registration = *item;
  } else {
    target.registered = false;
    target.bytes = {};
    target.usage = target.options.usage = mr::usage::none;
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

task<> region::refresh(std::size_t offset, std::size_t length) {
  if (!*this) throw error(errc::invalid_argument, "refresh an empty region");
  detail::check_range(offset, length, size());
  detail::region_state& target = *state_;
  if (target.options.dmabuf) throw error(errc::invalid_argument, "refresh the memory of a device");
  const change going_on(target, "refresh");
  std::optional<registration> item(target.registration);
  const auto work = [&item, &target] {
    target.end_last_uses();
    target.domain->refresh_now(*item, target);
  };
  co_await work_on(target, item, target.all_ranges(), target.options, work);
}

task<> region::refresh() { return refresh(0, size()); }

task<> region::reregister(registration_options options) { return reregister(bytes(), options); }

task<> region::reregister(std::span<std::byte> memory, registration_options options) {
  if (!*this) throw error(errc::invalid_argument, "register an empty region anew");
  detail::region_state& target = *state_;
  if (!target.borrowed && (memory.data() != data() || memory.size() != size())) {
    throw error(errc::invalid_argument, "register other memory in a region that owns its own");
  }
  if (!target.ranges.empty() || !target.enabled || target.counter != nullptr || options.disabled) {
    throw error(errc::invalid_argument, "change a region that has several ranges, is disabled or counts");
  }
  const change going_on(target, "register anew");
  std::optional<registration> item(target.registration);
  const auto work = [&item, &target, memory, &options] {
    target.end_last_uses();
    target.domain->reregister_now(item, target, memory, options);
  };
  co_await work_on(target, item, {&memory, 1}, options, work);
  target.bytes = memory;
  target.set(options);
}

task<> region::release() {
  if (state_ == nullptr) co_return;
  std::unique_ptr<detail::region_state> state = take("release");
  const weft::detail::stop_shield shield(co_await weft::detail::current_promise());
  const auto destroy = [&state]() noexcept { state.reset(); };
  co_await weft::detail::offload_for_resources(destroy);
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
