// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/domain.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/write_counter.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/stop_shield.hpp>

#include <fmt/core.h>

#include <cassert>
#include <exception>
#include <optional>

namespace weft::mr {

detail::region_state::region_state(std::shared_ptr<mr::domain> home) noexcept : domain(std::move(home)) {}

detail::region_state::~region_state() { deregister(); }

std::size_t detail::region_state::size() const noexcept {
  if (ranges.empty()) return bytes.size();
  std::size_t sum = 0;
  for (const auto& range : ranges) sum += range.size();
  return sum;
}

void detail::region_state::deregister() noexcept {
  if (std::exchange(registered, false)) domain->deregister_now(registration);
}

void detail::region_state::let_go() noexcept {
  if (holders.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  std::unique_ptr<detail::region_state> self(this);
  if (!borrowed) run_on_worker(std::move(self));
}

region::~region() {
  if (state_ == nullptr) return;
  if (state_->borrowed) {
    if (state_->holders.load() != 1) {
      weft::detail::terminate_because("a region that borrows its memory was destroyed while an operation uses it");
    }
    state_->deregister();
  }
  state_->let_go();
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
  if (state_->ranges.empty()) return slice().subslice(offset, length);
  return {bytes_at(offset, length), state_->registration.local_key, usage(), *state_->domain, state_};
}

slice region::slice() const noexcept {
  return {state_->bytes, state_->registration.local_key, usage(), *state_->domain, state_};
}

remote_region region::remote() const {
  const mr::usage open = usage() & peer_usages;
  if (open == mr::usage::none) {
    throw error(errc::access_denied,
                fmt::format("a region of {} bytes registered for {} has no key for peers", size(), to_string(usage())));
  }
  return {state_->registration.remote_key, state_->registration.address, size(), open};
}

std::unique_ptr<detail::region_state> region::take(const char* what) {
  std::uint32_t alone = 1;
  if (!state_->holders.compare_exchange_strong(alone, 0, std::memory_order_acq_rel)) {
    throw error(errc::busy,
                fmt::format("{} a region of {} bytes: {} operations and windows use it", what, size(), alone - 1));
  }
  return std::unique_ptr<detail::region_state>(std::exchange(state_, nullptr));
}

void region::bind(const write_counter& counter) {
  if (state_->enabled) {
    throw error(errc::invalid_argument, "bind a counter to a region that is enabled: register it with `disabled`");
  }
  if (state_->holders.load(std::memory_order_acquire) != 1) {
    throw error(errc::busy, "bind a counter to a region that is in use");
  }
  state_->domain->count_writes_of(*state_, counter.core_);
}

void region::enable() {
  if (!state_->enabled) state_->domain->enable(*state_);
}

remote_writes_operation region::remote_writes(std::uint64_t n) const {
  if (state_->counter == nullptr) {
    throw error(errc::invalid_argument, "wait for writes of peers to a region that has no counter: see region::bind()");
  }
  return {state_->counter, n, region_pin(slice())};
}

// The region is empty until the work has been done, and afterwards if nothing is registered any more.
template <class Work>
task<> region::work_on(std::unique_ptr<detail::region_state>& state, Work& work) {
  const weft::detail::stop_shield shield(co_await weft::detail::current_promise());
  const auto call = [&state, &work] { work(*state); };
  std::exception_ptr failure;
  try {
    co_await offload(call);
  } catch (...) {
    failure = std::current_exception();
  }
  if (state->registered) {
    state->holders.store(1, std::memory_order_release);
    state_ = state.release();
  } else {
    detail::run_on_worker(std::move(state));  // frees what it owns
  }
  if (failure) std::rethrow_exception(failure);
}

task<> region::refresh(std::size_t offset, std::size_t length) {
  if (state_ == nullptr) throw error(errc::invalid_argument, "refresh an empty region");
  detail::check_range(offset, length, size());
  if (state_->options.dmabuf) throw error(errc::invalid_argument, "refresh the memory of a device");
  std::unique_ptr<detail::region_state> state = take("refresh");
  const auto work = [](detail::region_state& target) { target.domain->refresh_now(target); };
  co_await work_on(state, work);
}

task<> region::refresh() { return refresh(0, state_ == nullptr ? 0 : size()); }

task<> region::reregister(registration_options options) {
  return reregister(state_ == nullptr ? std::span<std::byte>() : bytes(), options);
}

task<> region::reregister(std::span<std::byte> memory, registration_options options) {
  if (state_ == nullptr) throw error(errc::invalid_argument, "register an empty region anew");
  if (!state_->borrowed && (memory.data() != data() || memory.size() != size())) {
    throw error(errc::invalid_argument, "register other memory in a region that owns its own");
  }
  if (!state_->ranges.empty() || !state_->enabled || state_->counter != nullptr || options.disabled) {
    throw error(errc::invalid_argument, "change a region that has several ranges, is disabled or counts");
  }
  std::unique_ptr<detail::region_state> state = take("register anew");
  const auto work = [memory, &options](detail::region_state& target) {
    target.domain->reregister_now(target, memory, options);
  };
  co_await work_on(state, work);
}

task<> region::release() {
  if (state_ == nullptr) co_return;
  std::unique_ptr<detail::region_state> state = take("release");
  const weft::detail::stop_shield shield(co_await weft::detail::current_promise());
  const auto destroy = [&state]() noexcept { state.reset(); };
  co_await offload(destroy);
}

region_pin::region_pin(const slice& used) noexcept : state_(used.region_) {
  if (state_ == nullptr) return;
  [[maybe_unused]] const std::uint32_t before = state_->holders.fetch_add(1, std::memory_order_relaxed);
  assert(before != 0 && "a slice was used after its region had been released");
}

}  // namespace weft::mr
