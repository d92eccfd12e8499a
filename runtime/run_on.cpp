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

void run_on_base::call_ended() noexcept { mail_done(); }

void run_on_base::stop() noexcept {
  call_.request_stop();
  mail_done();
}

void run_on_base::mail_done() noexcept {
  executor_core& home_executor = home();
  // mutant: resume who waits for another executor
  if (outstanding_.fetch_sub(1, std::memory_order_acq_rel) == 1) home_executor.submit(home_mail_);
}

void run_on_base::come_home() noexcept { finish(); }

}  // namespace weft::detail
