// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool.hpp>
#include <weft/mr/pool_core.hpp>

namespace weft::mr {

void detail::allocate_waiter::leave() noexcept {
  if (core_->withdraw(*this)) return;
  core_->abandon(*this);
  if (block_ != nullptr) free_block(*block_);
}

void detail::allocate_waiter::begin() { core_->enqueue(*this); }

void detail::allocate_waiter::cancel() noexcept {
  if (core_->withdraw(*this)) finish();  // else the buffer is on its way
}

detail::block& detail::allocate_waiter::take() {
  if (block_ != nullptr) return *std::exchange(block_, nullptr);
  if (failure_) std::rethrow_exception(std::move(failure_));
  throw error(errc::canceled, "allocate");
}

pool::pool(std::shared_ptr<domain> home, pool_options options)
    : core_(new detail::pool_core(std::move(home), options)), number_(core_->number()) {}

pool::~pool() {
  core_->report_leaks();
  core_->close();
}

detail::block* pool::take(std::size_t bytes, budget share, const std::source_location& where) {
  if (bytes > core_->limit(share)) throw core_->impossible(bytes, share);
  return core_->take(bytes, share, where);
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
