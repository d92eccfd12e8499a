// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/remote_call.hpp>

namespace weft::detail {

void remote_call_base::start(executor_core& where, caller& waiting, const char* name) noexcept {
  where_ = &where;
  caller_ = &waiting;
  name_ = name;
  where.submit(*this);
}

void remote_call_base::run_on_executor() noexcept {
  try {
    run_in_background(*where_, drive(*this), name_);
  } catch (...) {  // no memory for a frame
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
  self.caller_->call_ended();  // and `self` may be gone
}

}  // namespace weft::detail
