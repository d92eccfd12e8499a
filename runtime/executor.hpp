// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/clock.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/event_driver.hpp>
#include <weft/runtime/poller.hpp>
#include <weft/runtime/ready_queue.hpp>
#include <weft/runtime/task.hpp>
#include <weft/runtime/timer.hpp>

#include <atomic>
#include <concepts>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

class executor;
class worker_pool;

/// How an executor waits for completions.
enum class poll_policy : std::uint8_t {
  adaptive,  ///< spin for as long as completions lately took to come, then sleep
  spin,      ///< never sleep: the lowest latency, a whole core
  sleep,     ///< sleep at once: the fewest cycles
};

/// What an executor is made of. The seams are there for tests; their defaults are the real machine.
struct executor_options {
  poll_policy policy = poll_policy::adaptive;
  driver_choice driver = driver_choice::automatic;
  duration longest_spin = std::chrono::microseconds(50);  ///< upper bound of what `adaptive` spins
  worker_pool* workers = nullptr;                         ///< for offload(); null: worker_pool::shared()

  /// Seam: null is the steady clock. On any other the executor never spins, because time may not pass by itself.
  weft::clock* clock = nullptr;
  weft::system_calls* system_calls = nullptr;     ///< seam: null is the kernel
  event_driver* simulated_driver = nullptr;       ///< seam: used instead of a real one, and not owned
  std::optional<std::uint64_t> ready_order_seed;  ///< seam: resume ready tasks in an order drawn from this seed
};
static_assert(std::is_trivially_destructible_v<executor_options>);

namespace detail {

/// Work that another thread hands to an executor. Intrusive.
class remote_work {
 public:
  remote_work() = default;
  remote_work(const remote_work&) = delete;
  remote_work& operator=(const remote_work&) = delete;

 protected:
  ~remote_work() = default;
  /// Called once, on the executor's thread.
  virtual void run_on_executor() noexcept = 0;

 private:
  friend class weft::executor;
  remote_work* next_ = nullptr;
};

/// A coroutine that nobody awaits; its owner learns of its end through ended(). For run(), scopes, and the runtime's
/// own background work: users spawn in a scope.
class root_task {
 public:
  class promise_type;

  /// Whoever waits for the end.
  class observer {
   protected:
    ~observer() = default;

   private:
    friend class promise_type;
    friend struct root_final_awaiter;
    /// Called on the executor's thread once the coroutine's frame is gone. `failure` may be null.
    virtual void ended(std::exception_ptr failure) noexcept = 0;
  };

  explicit root_task(promise_type& promise) noexcept : promise_(&promise) {}

  /// Queues the coroutine; from here on its frame owns itself.
  void start(executor& where, observer& end, stop_token token) noexcept;

 private:
  promise_type* promise_;
};

struct root_final_awaiter {
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<root_task::promise_type> finished) const noexcept;
  void await_resume() const noexcept {}
};

class root_task::promise_type final : public promise_base {
 public:
  root_task get_return_object() noexcept {
    set_handle(std::coroutine_handle<promise_type>::from_promise(*this));
    return root_task(*this);
  }
  std::suspend_always initial_suspend() const noexcept { return {}; }
  root_final_awaiter final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { failure_ = std::current_exception(); }
  void return_void() const noexcept {}

 private:
  friend class root_task;
  friend struct root_final_awaiter;
  observer* observer_ = nullptr;
  std::exception_ptr failure_;
};

/// Runs a task to its end.
root_task run_root(task<> body);

}  // namespace detail

/// One thread's event loop: resumes tasks, polls completion queues, waits for the kernel.
///
/// It belongs to the thread that first calls run(); what may be called from elsewhere says so.
/// One turn serves the mailbox, ready tasks, pollers, timers and the kernel, each with a bounded batch, so that none
/// can starve another.
class executor {
 public:
  explicit executor(executor_options options = {});
  executor(const executor&) = delete;
  executor& operator=(const executor&) = delete;
  ~executor();

  /// Runs `root` to its end on the calling thread, then finishes what works in the background (connections that close),
  /// and returns what the task returned or throws what it threw. errc::wrong_thread on another thread than the first.
  template <class T>
  T run(task<T> root);

  /// The same; a stop requested on `token`, from any thread, stops the task.
  template <class T>
  T run(task<T> root, std::stop_token token);

  /// From any thread: has `function` called on this executor, soon and in order. It must not throw.
  /// What has not been called when the executor is destroyed is called then.
  /// Allocates; work that recurs derives from detail::remote_work.
  template <std::invocable Function>
  void post(Function function);

  /// Which event driver is in use: "io_uring" or "epoll".
  [[nodiscard]] std::string_view driver() const noexcept { return driver_->name(); }
  /// Why it is not io_uring, in words; empty if it is, or if another was asked for.
  [[nodiscard]] const std::string& driver_reason() const noexcept { return driver_reason_; }

  [[nodiscard]] time_point now() const noexcept { return clock_->now(); }

  /// From the executor's thread, or before the first run(). The poller must stay until it is removed.
  /// errc::wrong_thread on another thread than that of run().
  void add_poller(poller& source);
  void remove_poller(poller& source) noexcept;

  /// The executor that runs on this thread, or null.
  [[nodiscard]] static executor* current() noexcept { return current_; }
  [[nodiscard]] bool on_own_thread() const noexcept { return current_ == this; }
  /// Whether the calling thread is the one that may call run(): the first that did, also when it is over.
  [[nodiscard]] bool belongs_to_this_thread() const noexcept;

  /// How often the executor has slept, and how many turns it has made: an idle one does neither. From its own thread.
  struct counters {
    std::uint64_t turns = 0;
    std::uint64_t sleeps = 0;
    std::uint64_t resumed = 0;
  };
  [[nodiscard]] const counters& statistics() const noexcept { return counters_; }

  // What the parts of weft that stand on the runtime use. All but submit() from the executor's thread.

  /// Resumes `waiter` in a coming batch.
  void ready(detail::promise_base& waiter) noexcept { ready_.push(waiter); }
  /// From any thread: has `work` run here.
  void submit(detail::remote_work& work) noexcept;
  void arm(detail::timer& item, time_point deadline) { timers_.arm(item, deadline); }
  void disarm(detail::timer& item) noexcept { timers_.disarm(item); }
  [[nodiscard]] event_driver& io() noexcept { return *driver_; }
  [[nodiscard]] weft::system_calls& calls() const noexcept { return *calls_; }
  [[nodiscard]] worker_pool& workers() const noexcept { return *workers_; }
  /// Runs `work` beside everything else; run() returns only after it has ended. It must not throw.
  /// errc::wrong_thread elsewhere than on this executor.
  void run_in_background(task<> work);
  /// Something that lives as long as the executor, created at the first call: queues and caches of the layers above,
  /// keyed by the address of a constant of theirs and by its owner (a device).
  class attachment {
   public:
    virtual ~attachment() = default;
  };
  [[nodiscard]] attachment* find_attachment(const void* key) const noexcept;
  attachment& attach(const void* key, std::unique_ptr<attachment> item);
  void drop_attachment(const void* key) noexcept;

 private:
  class poller_watch;
  class background_observer final : public detail::root_task::observer {
   public:
    std::size_t outstanding = 0;

   private:
    void ended(std::exception_ptr failure) noexcept override;
  };

  void run_to_end(task<> root, std::stop_token token);
  void run_until(const bool& done);
  [[nodiscard]] bool turn();
  void idle();
  [[nodiscard]] bool spin();
  void sleep();
  void run_mail(std::size_t budget) noexcept;
  void run_all_mail() noexcept;
  void take_mail() noexcept;
  void resume_ready() noexcept;
  std::size_t resume(detail::promise_base& first, std::size_t budget) noexcept;
  std::size_t poll_sources() noexcept;
  void expire_timers() noexcept;
  [[nodiscard]] bool work_waits() const noexcept {
    return !ready_.empty() || inbox_ != nullptr || mailbox_.load(std::memory_order_acquire) != nullptr;
  }
  void check_thread(const char* what) const;
  [[nodiscard]] std::optional<duration> time_to_sleep() const noexcept;
  void learn_gap(duration gap) noexcept;

  static constinit thread_local executor* current_;

  weft::clock* clock_;
  weft::system_calls* calls_;
  worker_pool* workers_;
  poll_policy policy_;
  duration longest_spin_;
  duration typical_gap_;  // moving average of how long completions let us wait; decides how long to spin

  std::string driver_reason_;
  std::unique_ptr<event_driver> owned_driver_;
  event_driver* driver_;
  std::uint64_t thread_ = 0;  // the number of the thread that runs us; 0: none yet

  detail::ready_queue ready_;
  detail::timer_queue timers_;
  std::vector<std::unique_ptr<poller_watch>> pollers_;
  std::vector<std::pair<const void*, std::unique_ptr<attachment>>> attachments_;
  background_observer background_;
  counters counters_;

  // The mailbox: pushed by any thread, newest first; taken whole by the owner.
  std::atomic<detail::remote_work*> mailbox_{nullptr};
  detail::remote_work* inbox_ = nullptr;  // taken from the mailbox, oldest first
  // true: the owner is about to wait in the kernel, and whoever sets it to false must wake the driver.
  // The owner publishes true before it looks at the mailbox a last time; a sender pushes before it looks here.
  std::atomic<bool> sleeping_{false};
  // How many threads are inside submit(): what one of them has pushed may end the executor before it has left.
  std::atomic<unsigned> submitting_{0};
};

namespace detail {

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

template <class T>
task<> keep_result(task<T> body, std::optional<T>& result) {
  result.emplace(co_await std::move(body));
}

}  // namespace detail

template <std::invocable Function>
void executor::post(Function function) {
  submit(*new detail::posted_function<Function>(std::move(function)));
}

template <class T>
T executor::run(task<T> root, std::stop_token token) {
  if constexpr (std::is_void_v<T>) {
    run_to_end(std::move(root), std::move(token));
  } else {
    std::optional<T> result;
    run_to_end(detail::keep_result(std::move(root), result), std::move(token));
    return std::move(*result);
  }
}

template <class T>
T executor::run(task<T> root) {
  return run(std::move(root), std::stop_token());
}

}  // namespace weft
