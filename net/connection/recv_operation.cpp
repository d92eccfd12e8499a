// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/operation_owner.hpp>
#include <weft/net/connection/recv_operation.hpp>

namespace weft::net {

recv_operation::~recv_operation() {
  if (waiting() && begun()) owner_->abandon(*this);
}

std::optional<message> recv_operation::await_resume() {
  if (failure_) throw *failure_;
  if (!begun()) throw error(errc::canceled, "receive: stopped before it began");
  return std::move(message_);
}

void recv_operation::begin() {
  if (owner_ != nullptr) return owner_->start(*this);
  failure_ = moved_from_connection();
  finish();
}

void recv_operation::cancel() noexcept { owner_->stop(*this); }

message recv_or_throw_operation::await_resume() { return *recv_operation::await_resume(); }

}  // namespace weft::net
