// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

namespace weft {

class executor_core;

namespace detail {

class mailbox;

/// Work that another thread hands to an executor. Intrusive.
class remote_work {
 public:
  remote_work() = default;
  remote_work(const remote_work&) = delete;
  remote_work& operator=(const remote_work&) = delete;

 protected:
  ~remote_work() = default;
  /// Called once for each submit() that is not withdrawn: on the executor's thread, or in the executor's destructor, on
  /// the thread that destroys the executor.
  virtual void run_on_executor() noexcept = 0;

 private:
  friend class weft::executor_core;
  friend class mailbox;
  remote_work* next_;  // set while it is in a mailbox
};

/// Calls a function once, then deletes itself.
template <class Function>
class posted_function final : public remote_work {
 public:
  explicit posted_function(Function function) : function_(std::move(function)) {}

 private:
  void run_on_executor() noexcept override {
    const std::unique_ptr<posted_function> self(this);
    function_();
  }
  Function function_;
};

}  // namespace detail

}  // namespace weft
