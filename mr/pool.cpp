// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool.hpp>
#include <weft/mr/pool/pool_core.hpp>

#include <fmt/core.h>

#include <exception>
#include <new>

namespace weft::mr {

void detail::allocate_waiter::leave() noexcept {
  if (core_->withdraw(*this)) return;
  core_->abandon(*this);
  while (block_ != nullptr) free_block(*std::exchange(block_, std::exchange(block_->next, nullptr)));
}

void detail::allocate_waiter::begin() { core_->enqueue(*this); }

// The words are made here, because the core may be gone when the task goes on.
void detail::allocate_waiter::cancel() noexcept {
  if (!core_->withdraw(*this)) return;  // the buffer is on its way
  try {
    failure_ = std::make_exception_ptr(core_->canceled(*this));
  } catch (const std::bad_alloc&) {  // then without words
  }
  finish();
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

detail::block* pool::take(std::size_t bytes, budget which, const std::source_location& where) {
  if (bytes > core_->limit(which)) throw core_->impossible(bytes, which);
  return core_->take(bytes, which, where);
}

namespace {

/// Waits for several blocks.
class gather_operation {
 public:
  gather_operation(detail::pool_core& source, std::size_t count, std::size_t bytes, budget which,
                   std::source_location where) noexcept
      : waiter_(source, count, bytes, which, where) {}

  bool await_ready() const noexcept { return false; }
  template <std::derived_from<weft::detail::promise_base> Promise>
  void await_suspend(std::coroutine_handle<Promise> waiter) {
    waiter_.await_suspend(waiter);
  }
  detail::block* await_resume() { return &waiter_.take(); }

 private:
  detail::allocate_waiter waiter_;
};

}  // namespace

task<std::vector<buffer>> pool::allocate_all(std::size_t count, std::size_t bytes, budget which,
                                             std::source_location where) {
  if (bytes > core_->limit(which)) throw core_->impossible(bytes, which);
  if (count > max_buffers(bytes, which)) throw core_->impossible(count, bytes, which);
  std::vector<buffer> all;
  if (count == 0) co_return all;
  all.reserve(count);
  gather_operation gathering(*core_, count, bytes, which, where);
  detail::block* item = co_await gathering;
  while (item != nullptr) {
    detail::block& taken = *std::exchange(item, std::exchange(item->next, nullptr));
    all.push_back(buffer(taken, bytes));
  }
  co_return all;
}

std::size_t pool::max_buffer_bytes(budget which) const noexcept { return core_->limit(which); }

std::size_t pool::max_buffers(std::size_t bytes, budget which) const noexcept {
  return core_->most_blocks(bytes, which);
}

pool_statistics pool::statistics() const { return core_->statistics(); }

std::string to_string(const budget_statistics& what) {
  return fmt::format("{} of at most {} bytes are in use, {} more are kept at hand by executors, {} allocations wait",
                     what.in_use_bytes, what.max_bytes, what.cached_bytes, what.waiting);
}

void add_to(metrics& all, const pool_statistics& what, std::string_view name) {
  for (const budget which : {budget::send, budget::receive}) {
    const budget_statistics& one = what.of(which);
    const std::string labels =
        metrics::label("pool", name) + ',' + metrics::label("budget", which == budget::send ? "send" : "receive");
    all.gauge("weft_pool_max_bytes", "The most that arenas may take.", labels, one.max_bytes);
    all.gauge("weft_pool_arena_bytes", "Mapped and registered.", labels, one.arena_bytes);
    all.gauge("weft_pool_in_use_bytes", "In buffers.", labels, one.in_use_bytes);
    all.gauge("weft_pool_cached_bytes", "Kept at hand by executors.", labels, one.cached_bytes);
    all.gauge("weft_pool_waiting", "Allocations that wait.", labels, one.waiting);
  }
  all.counter("weft_pool_failures_total", "Arenas that could not be made.", metrics::label("pool", name),
              what.failures);
}

}  // namespace weft::mr
