// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool.hpp>
#include <weft/mr/pool_core.hpp>

namespace weft::mr {

void allocate_operation::leave() noexcept {
  if (core_->withdraw(*this)) return;
  core_->abandon(*this);
  if (block_ != nullptr) detail::free_block(*block_);
}

// What is too large is not in a cache.
bool allocate_operation::await_ready() {
  block_ = core_->take(bytes_, share_);
  if (block_ != nullptr) return true;
  if (bytes_ <= core_->limit(share_)) return false;
  failure_ = std::make_exception_ptr(core_->impossible(bytes_, share_));
  return true;
}

void allocate_operation::begin() { core_->enqueue(*this); }

void allocate_operation::cancel() noexcept {
  if (core_->withdraw(*this)) finish();  // else the buffer is on its way
}

void allocate_operation::fail() {
  if (failure_) std::rethrow_exception(std::move(failure_));
  throw error(errc::canceled, "allocate");
}

pool::pool(std::shared_ptr<domain> home, pool_options options)
    : core_(new detail::pool_core(std::move(home), options)) {}

pool::~pool() { core_->close(); }

std::optional<buffer> pool::try_allocate(std::size_t bytes, budget share) {
  if (bytes > largest(share)) throw core_->impossible(bytes, share);
  detail::block* const item = core_->take(bytes, share);
  if (item == nullptr) return std::nullopt;
  return buffer(*item, bytes);
}

std::size_t pool::largest(budget share) const noexcept { return core_->limit(share); }

pool_statistics pool::statistics() const { return core_->statistics(); }

void add_to(metrics& all, const pool_statistics& what, std::string_view name) {
  for (const budget which : {budget::send, budget::receive}) {
    const pool_statistics::share& share = what.of(which);
    const std::string labels =
        metrics::label("pool", name) + ',' + metrics::label("budget", which == budget::send ? "send" : "receive");
    all.gauge("weft_pool_limit_bytes", "The most that arenas may take.", labels, share.limit_bytes);
    all.gauge("weft_pool_arena_bytes", "Mapped and registered.", labels, share.arena_bytes);
    all.gauge("weft_pool_in_use_bytes", "In buffers.", labels, share.in_use_bytes);
    all.gauge("weft_pool_cached_bytes", "Kept at hand by executors.", labels, share.cached_bytes);
    all.gauge("weft_pool_waiting", "Allocations that wait.", labels, share.waiting);
  }
  all.counter("weft_pool_failures_total", "Arenas that could not be made.", metrics::label("pool", name),
              what.failures);
}

}  // namespace weft::mr
