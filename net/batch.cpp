// SPDX-License-Identifier: Apache-2.0
#include <weft/net/batch.hpp>
#include <weft/net/connection/operation_owner.hpp>

#include <fmt/core.h>

namespace weft::net {

batch_operation::~batch_operation() {
  if (waiting() && begun()) owner_->abandon(*this);
  if (claimed_) release_members(members_.size());
}

bool batch_operation::claim_members() noexcept {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    transfer& item = members_[i];
    if (item.owner_ == owner_ && item.batch_ == nullptr && !item.spent_ && !item.begun()) {
      item.batch_ = this;
      continue;
    }
    release_members(i);
    return false;
  }
  return claimed_ = true;
}

void batch_operation::release_members(std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    members_[i].batch_ = nullptr;
    members_[i].spent_ = claimed_;
  }
  claimed_ = false;
}

std::string batch_operation::describe() const { return fmt::format("a batch of {}", members_.size()); }

void batch_operation::begin() {
  if (owner_ != nullptr) return owner_->start(*this);
  refused_ = moved_from_connection();
  finish();
}

void batch_operation::cancel() noexcept { owner_->stop(*this); }

// Members are released here as well, because the awaiting task may use them before the batch is destroyed.
void batch_operation::await_resume() {
  if (claimed_) release_members(members_.size());
  if (refused_) throw *refused_;
  for (std::size_t i = 0; begun() && i < members_.size(); ++i) {
    if (members_[i].failure_) throw *members_[i].failure_;
  }
  if (!begun()) throw error(errc::canceled, "batch: stopped before it began");
}

}  // namespace weft::net
