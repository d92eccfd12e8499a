// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/receive_refill.hpp>
#include <weft/runtime/core/background.hpp>

#include <new>

namespace weft::net {

void receive_refill::add(receive_slot& slot, std::shared_ptr<void> owner) noexcept {
  empty_.push(slot);
  retry(std::move(owner));
}

void receive_refill::retry(std::shared_ptr<void> owner) noexcept {
  if (empty_.empty() || std::exchange(running_, true)) return;
  ended_.reset();
  try {
    run_in_background(home_, run(std::move(owner)));
  } catch (const std::bad_alloc&) {  // no memory for the coroutine run()
    running_ = false;
    ended_.set();
    client_.refill_failed(weft::detail::make_error(errc::no_memory, "find memory for receives"));
  }
}

task<> receive_refill::run(std::shared_ptr<void>) {
  detail::promise_base& self = co_await detail::current_promise();
  self.set_stop_token(stop_.get_token());
  try {
    while (!empty_.empty() && !stop_.stop_requested()) {
      mr::buffer memory = co_await pool_.allocate(bytes_, mr::budget::receive);
      client_.refilled(empty_.pop(), std::move(memory));
    }
  } catch (const error& why) {
    if (why.code() != errc::canceled) client_.refill_failed(why);
  } catch (const std::bad_alloc&) {
    client_.refill_failed(weft::detail::make_error(errc::no_memory, "find memory for receives"));
  }
  self.set_stop_token(stop_token());
  running_ = false;
  ended_.set();
}

}  // namespace weft::net
