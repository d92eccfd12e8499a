// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/executor_list.hpp>
#include <weft/runtime/core/fork_guard.hpp>

#include <new>

namespace weft::detail {

constinit std::mutex listed_executor::mutex_;
constinit listed_executor* listed_executor::first_ = nullptr;

listed_executor::listed_executor(executor_core& who) : who_(who), process_(::getpid()) {
  if (!unlock_in_children<mutex_>()) throw std::bad_alloc();
  const std::lock_guard lock(mutex_);
  next_ = first_;
  previous_ = &first_;
  if (first_ != nullptr) first_->previous_ = &next_;
  first_ = this;
}

listed_executor::~listed_executor() {
  const std::lock_guard lock(mutex_);
  *previous_ = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

}  // namespace weft::detail
