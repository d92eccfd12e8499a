// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cache.hpp>
#include <weft/mr/cache/cache_core.hpp>
#include <weft/mr/device_memory.hpp>
#include <weft/runtime/error.hpp>

namespace weft::mr {
void detail::end_lease(cache_entry& held) noexcept { held.let_go(); }

std::uint64_t lease::generation() const noexcept { return entry_->generation; }

bool lease::current() const noexcept { return entry_->core().is_current(*entry_); }

mr::slice lease::slice() const noexcept { return {bytes_, entry_}; }

void lease_operation::leave() noexcept {
  if (!core_->give_up(*this)) weft::detail::remote_waiters::forget(*this);
}

bool lease_operation::await_ready() {
  core_->check(memory_, usage_);
  if (device_ != nullptr) allocation_ = device_->find(memory_).id;
  entry_ = core_->find(*this);
  return entry_ != nullptr;
}

void lease_operation::begin() {
  if (!core_->wait(*this)) finish();
}

void lease_operation::cancel() noexcept {
  if (core_->give_up(*this)) finish();  // else the lease or its failure is on the way
}

void lease_operation::fail() const {
  if (failure_) throw *failure_;
  throw error(errc::canceled, "lease");
}

cache::cache(domain& home, cache_options options)
    : core_(std::make_shared<detail::cache_core>(home.shared_from_this(), options)) {}

cache::~cache() {
  if (core_->is_parents()) {
    // Without memory for the copy, the child terminates. NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
    static_cast<void>(new std::shared_ptr<detail::cache_core>(std::move(core_)));  // leaked: a child must not use it
  } else {
    core_->close();
  }
}

void cache::invalidate(std::span<const std::byte> range) noexcept { core_->invalidate(range); }

void cache::clear() noexcept { core_->clear(); }

cache_statistics cache::statistics() const noexcept { return core_->statistics(); }

}  // namespace weft::mr
