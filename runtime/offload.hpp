// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/owned_thread.hpp>
#include <weft/runtime/core/pinned.hpp>

#include <sched.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

namespace detail {

/// Work for a thread of a worker_pool. Intrusive.
class worker_job {
 public:
  worker_job() = default;
  worker_job(const worker_job&) = delete;
  worker_job& operator=(const worker_job&) = delete;

 protected:
  ~worker_job() = default;

  /// Called once, on a worker thread. The job may be gone as soon as run() has made its result known.
  virtual void run() noexcept = 0;

 private:
  friend class weft::worker_pool;
  worker_job* previous_ = nullptr;
  worker_job* next_ = nullptr;
  bool queued_ = false;  // under the pool's mutex
};

}  // namespace detail

/// A bounded number of threads for what would block an executor: registration, files, name resolution, hashing.
/// Threads start when they are first needed, on any processor that the thread which made the pool may use, even where
/// the one that needs them is pinned to its own. The destructor waits for the job in hand of every thread.
///
/// A child of fork(2) has a copy of the pool without its threads: it starts threads of its own when it needs them, and
/// what the parent had submitted is not run there.
///
/// submit() and withdraw() are a seam: a simulated pool decides when its jobs run, on a thread that runs no executor.
class worker_pool {
 public:
  explicit worker_pool(std::size_t threads = 4);
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;
  virtual ~worker_pool();

  /// From any thread. Jobs start in the order in which they were submitted.
  virtual void submit(detail::worker_job& job);

  /// From any thread: takes a job back that no thread has begun; false if one has.
  [[nodiscard]] virtual bool withdraw(detail::worker_job& job) noexcept;

  /// The process's own, used by executors that name no other.
  [[nodiscard]] static worker_pool& shared();

  /// Who registers and deregisters memory, and makes and destroys what connections use: a pool of the process's apart
  /// from shared(), where name servers and the functions of users may take their time. An executor with workers of its
  /// own has them do this as well. `home` may be null.
  [[nodiscard]] static worker_pool& for_resources(const executor* home);

 protected:
  /// For a simulated pool, which decides when its jobs run.
  static void run(detail::worker_job& job) noexcept { job.run(); }

 private:
  class all_pools;

  void work() noexcept;
  void unlink(detail::worker_job& job) noexcept;
  void start_anew() noexcept;

  // Among the pools of this process.
  worker_pool** previous_ = nullptr;
  worker_pool* next_ = nullptr;

  const std::size_t limit_;
  cpu_set_t processors_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  detail::worker_job* first_ = nullptr;  // the queue, oldest first
  detail::worker_job* last_ = nullptr;
  std::size_t queued_ = 0;
  std::size_t idle_ = 0;  // threads that wait for a job
  bool closing_ = false;
  std::vector<detail::owned_thread> threads_;
};

namespace detail {

/// The part of an offload that does not depend on the function: the way to a worker and back.
class offload_base : public operation_base, private worker_job, private remote_work {
 public:
  [[nodiscard]] std::string describe() const override { return "an offloaded function"; }

 protected:
  explicit offload_base(bool for_resources) noexcept : for_resources_(for_resources) {}
  offload_base(offload_base&& other) noexcept
      : operation_base(std::move(other)), for_resources_(other.for_resources_) {}
  ~offload_base();

  void throw_if_canceled() const;

  /// The function itself; keeps its result or exception.
  virtual void invoke() noexcept = 0;

 private:
  void begin() final;
  void cancel() noexcept final;
  void run() noexcept final;                           // worker thread
  void run_on_executor() noexcept final { finish(); }  // back home

  [[nodiscard]] worker_pool& workers() const;

  const bool for_resources_;
  bool ran_ = false;
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
/// A function that has begun runs to its end, and a stop waits for it; one that is still queued is withdrawn
/// (errc::canceled). `function` is an lvalue, or a closure whose captures are trivially destructible.
template <class Function>
  requires pinned<Function>
[[nodiscard]] auto offload(Function&& function) {
  return detail::offload_operation<Function>(std::forward<Function>(function));
}

namespace detail {

/// The same on worker_pool::for_resources(): for what the end of a connection or a region must not wait behind others
/// for.
template <class Function>
  requires pinned<Function>
[[nodiscard]] auto offload_for_resources(Function&& function) {
  return offload_operation<Function>(std::forward<Function>(function), true);
}

}  // namespace detail

}  // namespace weft
