// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/operation_owner.hpp>
#include <weft/net/connection/recv_operation.hpp>

namespace weft::net {

void recv_operation::abandon() noexcept { owner_->abandon(*this); }

void recv_operation::throw_failure() const {
  if (failure_) throw *failure_;
  throw error(errc::canceled, "receive: stopped before it began");
}

taken recv_operation::take_now(weft::detail::promise_base& waiter) noexcept {
  return owner_ != nullptr ? owner_->take_now(*this, waiter) : taken::no;
}

void recv_operation::begin() {
  if (owner_ == nullptr) [[unlikely]]
    return fail_without_owner();
  message_.reset();  // the results of an earlier await
  failure_.reset();
  owner_->start(*this);
}

void recv_operation::fail_without_owner() {
  failure_ = moved_from_connection();
  finish();
}

void recv_operation::cancel() noexcept { owner_->stop(*this); }

}  // namespace weft::net
