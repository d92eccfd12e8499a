// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/pinned.hpp>
#include <weft/runtime/core/remote_work.hpp>
#include <weft/runtime/worker_pool.hpp>

#include <atomic>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace weft {

namespace detail {

/// The part of an offload that does not depend on the function: the way to a worker and back.
class offload_base : public operation_base, private worker_job, private remote_work {
 public:
  [[nodiscard]] std::string describe() const override { return "an offloaded function"; }

 protected:
  explicit offload_base(bool for_resources) noexcept : for_resources_(for_resources) {}
  offload_base(offload_base&& other) noexcept
      : operation_base(std::move(other)), for_resources_(other.for_resources_) {}
  ~offload_base() = default;

  void throw_if_canceled() const;
  /// Must be called before the function is destroyed. Withdraws the function if it has not begun. If it has, waits for
  /// its end (offload_for_resources()) or ends the program (offload()), because it may use the awaiting frame.
  void leave() noexcept {
    if (waiting()) withdraw();
  }

  /// Calls the function and keeps its result or exception.
  virtual void invoke() noexcept = 0;

 private:
  void withdraw() noexcept;
  void begin() final;
  void cancel() noexcept final;
  void run() noexcept final;                           // on a worker thread
  void run_on_executor() noexcept final { finish(); }  // on the executor

  [[nodiscard]] worker_pool& workers() const;

  const bool for_resources_;
  std::atomic<bool> ran_ = false;
};

template <class Function>
using function_holder =
    std::conditional_t<std::is_lvalue_reference_v<Function>, Function, std::remove_cvref_t<Function>>;

template <class Function>
class offload_operation final : public offload_base {
  using value = std::invoke_result_t<std::remove_reference_t<Function>&>;
  using stored = std::conditional_t<std::is_void_v<value>, bool, value>;

 public:
  explicit offload_operation(Function&& function, bool for_resources = false)
      : offload_base(for_resources), function_(std::forward<Function>(function)) {}
  offload_operation(offload_operation&& other) noexcept
      : offload_base(std::move(other)), function_(std::forward<Function>(other.function_)) {}
  offload_operation& operator=(offload_operation&&) = delete;
  ~offload_operation() { leave(); }

  value await_resume() {
    throw_if_canceled();
    if (failure_) std::rethrow_exception(std::move(failure_));
    if constexpr (!std::is_void_v<value>) return std::move(*value_);
  }

 private:
  void invoke() noexcept override {
    try {
      if constexpr (std::is_void_v<value>) {
        function_();
      } else {
        value_.emplace(function_());
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  function_holder<Function> function_;
  std::optional<stored> value_;
  std::exception_ptr failure_;
};

}  // namespace detail

/// Runs `function` on a worker thread and resumes here with its result: `co_await offload(function)`.
///
/// A stop withdraws a function that is still queued (errc::canceled), and waits for one that has begun. Once the
/// function has begun, destroying the task before its result has come back ends the program. `function` must be an
/// lvalue, or a closure whose captures are trivially destructible. Throws weft::error if the pool has no thread and the
/// system does not start one.
template <class Function>
[[nodiscard]] auto offload(Function&& function) {
  detail::require_pinned<Function>();
  return detail::offload_operation<Function>(std::forward<Function>(function));
}

namespace detail {

/// offload() on resource_workers(), because the end of a connection or a region must not wait behind other jobs. If the
/// awaiting frame is destroyed, its destructor waits for a function that has begun; use apart() if that may take long.
template <class Function>
[[nodiscard]] auto offload_for_resources(Function&& function) {
  require_pinned<Function>();
  return offload_operation<Function>(std::forward<Function>(function), true);
}

}  // namespace detail

}  // namespace weft
