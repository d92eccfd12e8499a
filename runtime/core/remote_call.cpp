// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/remote_call.hpp>
#include <weft/runtime/error.hpp>

namespace weft::detail {

void remote_call_base::start(executor_core& where, caller& waiting, const char* name) {
  where_ = &where;
  caller_ = &waiting;
  name_ = name;
  if (!where.submit_unless_ended(*this)) throw error(errc::executor_stopped, name);
}

void remote_call_base::run_on_executor() noexcept {
  try {
    if (where_->has_ended()) throw error(errc::executor_stopped, name_);
    run_in_background(*where_, drive(*this), name_);
  } catch (...) {  // the executor has ended, or there is no memory for a frame
    keep_failure();
    caller_->call_ended();
  }
}

task<> remote_call_base::drive(remote_call_base& self) {
  promise_base& promise = co_await current_promise();
  promise.set_stop_token(self.stop_.get_token());
  try {
    co_await self.work();
  } catch (...) {  // no memory for its frame
    self.keep_failure();
  }
  promise.set_stop_token(stop_token());
  self.caller_->call_ended();  // `self` may be gone now
}

}  // namespace weft::detail
