// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/task.hpp>

namespace weft::detail {

/// Keeps stops from the coroutine, and from those that it awaits, while this object lives: for waits that must end by
/// themselves, such as the wait for a transport to finish. `stop_shield shield(co_await current_promise());`
class stop_shield {
 public:
  explicit stop_shield(promise_base& self) noexcept : self_(self), outer_(self.get_stop_token()) {
    self_.set_stop_token(stop_token());
  }
  stop_shield(const stop_shield&) = delete;
  stop_shield& operator=(const stop_shield&) = delete;
  ~stop_shield() { self_.set_stop_token(outer_); }

 private:
  promise_base& self_;
  stop_token outer_;
};

}  // namespace weft::detail
