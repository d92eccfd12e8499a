// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/allocate_waiter.hpp>
#include <weft/mr/pool/pool_core.hpp>
#include <weft/runtime/error.hpp>

#include <exception>
#include <new>
#include <utility>

namespace weft::mr::detail {

void allocate_waiter::leave() noexcept {
  if (core_->withdraw(*this)) return;
  core_->abandon(*this);
  while (block_ != nullptr) free_block(*std::exchange(block_, std::exchange(block_->next, nullptr)));
}

void allocate_waiter::begin() { core_->enqueue(*this); }

// The error is made here, because the core may be gone when the task resumes.
void allocate_waiter::cancel() noexcept {
  if (!core_->withdraw(*this)) return;  // the result is on its way
  try {
    failure_ = std::make_exception_ptr(core_->canceled(*this));
  } catch (const std::bad_alloc&) {  // take() then throws an error without details
  }
  finish();
}

block& allocate_waiter::take() {
  if (block_ != nullptr) return *std::exchange(block_, nullptr);
  if (failure_) std::rethrow_exception(std::move(failure_));
  throw error(errc::canceled, "allocate");
}

}  // namespace weft::mr::detail
