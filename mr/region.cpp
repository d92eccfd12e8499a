// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/domain.hpp>
#include <weft/mr/region.hpp>
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

slice region::slice(std::size_t offset, std::size_t length) const { return slice().subslice(offset, length); }

slice region::slice() const noexcept {
  return {state_->bytes, state_->registration.local_key, state_->usage, *state_->domain, state_};
}

remote_region region::remote() const {
  const mr::usage open = state_->usage & peer_usages;
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

task<> region::reregister(registration_options options) {
  return reregister(state_ == nullptr ? std::span<std::byte>() : bytes(), options);
}

task<> region::reregister(std::span<std::byte> memory, registration_options options) {
  if (state_ == nullptr) throw error(errc::invalid_argument, "register an empty region anew");
  if (!state_->borrowed && (memory.data() != data() || memory.size() != size())) {
    throw error(errc::invalid_argument, "register other memory in a region that owns its own");
  }
  std::unique_ptr<detail::region_state> state = take("register anew");
  const weft::detail::stop_shield shield(co_await weft::detail::current_promise());
  const auto work = [&state, memory, &options] { state->domain->reregister_now(*state, memory, options); };
  std::exception_ptr failure;
  try {
    co_await offload(work);
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
