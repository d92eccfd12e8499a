// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/run_on.hpp>

namespace weft::detail {

run_on_base::~run_on_base() {
  if (waiting()) terminate_because("a task was destroyed while it waits for one on another executor");
}

void run_on_base::await_resume() const {
  if (failure_) std::rethrow_exception(failure_);
  if (!begun()) throw error(errc::canceled, "run a task on another executor");
}

void run_on_base::begin() {
  outstanding_.store(1, std::memory_order_relaxed);
  core_of(where_).submit(start_);
}

void run_on_base::cancel() noexcept {
  unsigned outstanding = outstanding_.load(std::memory_order_relaxed);
  do {
    if (outstanding == 0) return;
  } while (!outstanding_.compare_exchange_weak(outstanding, outstanding + 1, std::memory_order_relaxed));
  core_of(where_).submit(stop_);
}

void run_on_base::start() noexcept {
  try {
    run_in_background(core_of(where_), drive(*this), "run_on");
  } catch (...) {  // no memory for a frame
    keep_failure();
    mail_done();
  }
}

void run_on_base::stop() noexcept {
  stopping_.request_stop();
  mail_done();
}

task<> run_on_base::drive(run_on_base& self) {
  promise_base& promise = co_await current_promise();
  promise.set_stop_token(self.stopping_.get_token());
  try {
    co_await self.work();
  } catch (...) {  // no memory for its frame
    self.keep_failure();
  }
  promise.set_stop_token(stop_token());
  self.mail_done();  // and `self` may be gone
}

void run_on_base::mail_done() noexcept {
  executor_core& home_executor = home();
  if (outstanding_.fetch_sub(1, std::memory_order_acq_rel) == 1) home_executor.submit(home_mail_);
}

void run_on_base::come_home() noexcept { finish(); }

}  // namespace weft::detail
