// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/run_on.hpp>

namespace weft::detail {

void run_on_base::require_ended() const noexcept {
  if (waiting()) terminate_because("a task was destroyed while it waits for a task on another executor");
}

void run_on_base::check_begun() const {
  if (!begun()) throw error(errc::canceled, "run a task on another executor");
}

void run_on_base::begin() {
  outstanding_.store(1, std::memory_order_relaxed);
  call_.start(where_, *this, "run_on");
}

void run_on_base::cancel() noexcept {
  unsigned outstanding = outstanding_.load(std::memory_order_relaxed);
  do {
    if (outstanding == 0) return;
  } while (!outstanding_.compare_exchange_weak(outstanding, outstanding + 1, std::memory_order_relaxed));
  where_.submit(stop_);  // mutant: stop a task
}

// A stop that is on its way is withdrawn: it might come when the run() of where_ has returned, and where_ is gone.
void run_on_base::call_ended() noexcept {
  const bool was_last = is_last();
  if (!was_last && stop_runs_) return;  // the task has ended in the middle of stop()
  if (!was_last) where_.withdraw(stop_);
  answer();
}

void run_on_base::stop() noexcept {
  stop_runs_ = true;
  call_.request_stop();
  stop_runs_ = false;
  if (is_last()) answer();
}

bool run_on_base::is_last() noexcept { return outstanding_.fetch_sub(1, std::memory_order_acq_rel) == 1; }

void run_on_base::answer() noexcept {
  home().submit(home_mail_);  // mutant: resume who waits for another executor
}

void run_on_base::come_home() noexcept { finish(); }

}  // namespace weft::detail
