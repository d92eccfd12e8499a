// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/owned_thread.hpp>
#include <weft/runtime/core/ready_queue.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/io/clock.hpp>
#include <weft/runtime/io/event_driver.hpp>
#include <weft/runtime/io/poller.hpp>
#include <weft/runtime/io/timer.hpp>
#include <weft/runtime/task.hpp>

#include <atomic>
#include <cassert>
#include <concepts>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <source_location>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>
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

  /// Reports turns that take longer, by name (report_kind::stall); zero: does not look. Looking costs a reading of the
  /// clock for each task that is resumed.
  duration stall_limit = duration::zero();
  /// A signal such as SIGUSR1 on which every executor of the process that names it reports dump() while it runs
  /// (report_kind::dump); 0: none. Made before threads without an executor start, so that these do not take the signal.
  int dump_on_signal = 0;

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

class root_waiter;

/// What a task is called in dumps, traces and reports.
struct task_names {
  const char* task = nullptr;  // as its scope was told; null: it was not
  const char* scope = "";
  std::source_location origin{};
};
/// Of the task that this coroutine is a part of, and as `origin` the coroutine's own; of the coroutine alone where the
/// task is farther up than is worth the way. What it points to stays.
[[nodiscard]] task_names names_of(const promise_base& item) noexcept;

/// A task that runs side by side with others: nobody is suspended for its sake, and its owner learns of its end through
/// ended(). For run(), scopes, and the runtime's own background work: users spawn in a scope.
///
/// The coroutine goes when it ends. This lives on until its handle has been let go, because it keeps the result.
class root_task {
 public:
  /// Whoever waits for the end.
  class observer {
   protected:
    ~observer() = default;

   private:
    friend class root_task;
    /// Called on the executor's thread once the coroutine's frame is gone. `failure` may be null; `task` and `origin`
    /// are what the task was called.
    virtual void ended(std::exception_ptr failure, const char* task, std::source_location origin) noexcept = 0;

    friend class weft::executor;
    friend task_names names_of(const promise_base& item) noexcept;
    /// For dumps and reports: the coroutine whose scope this is, or null, and what the scope is called.
    [[nodiscard]] virtual const promise_base* owner() const noexcept { return nullptr; }
    [[nodiscard]] virtual const char* name() const noexcept { return ""; }
  };

  root_task(const root_task&) = delete;
  root_task& operator=(const root_task&) = delete;

  // The sized delete is its match. NOLINTNEXTLINE(misc-new-delete-overloads)
  static void* operator new(std::size_t bytes) { return allocate_frame(bytes); }
  static void operator delete(void* memory, std::size_t bytes) noexcept { free_frame(memory, bytes); }

  /// A token of this task alone, for start(): it is stopped along with `parent`, or by request_stop().
  [[nodiscard]] stop_token own_token(stop_token parent) noexcept {
    stop_.follow(parent);
    return stop_.get_token();
  }
  /// Asks a task that has such a token to stop, until it ends. Its owner does not hear of an errc::canceled with which
  /// it obeys. errc::wrong_thread elsewhere than on its executor.
  void request_stop();
  /// Queues the coroutine. `name` stays: a string literal, or null.
  void start(executor& where, observer& end, stop_token token, const char* name = nullptr) noexcept;
  /// Its end, from its coroutine.
  void end() noexcept;
  /// Nobody will ask for the result. It goes now, unless it runs: then it goes at its end.
  void let_go() noexcept {
    if (waiter_ != nullptr) terminate_because("the handle of a task was destroyed while somebody waits for the task");
    wanted_ = false;
    if (!running()) delete this;
  }
  [[nodiscard]] bool ended() const noexcept { return body_ == nullptr; }
  /// Where it has been started; null before that.
  [[nodiscard]] executor* home() const noexcept { return home_; }
  /// The one task that is suspended until the end, or null.
  void set_waiter(root_waiter* waiter) noexcept { waiter_ = waiter; }
  [[nodiscard]] bool has_waiter() const noexcept { return waiter_ != nullptr; }

  /// Where it is written, and as which function; unless told otherwise, that of its task.
  [[nodiscard]] std::source_location origin() const noexcept { return origin_; }
  void set_origin(std::source_location origin) noexcept { origin_ = origin; }

 protected:
  explicit root_task(promise_base& body) noexcept : body_(&body), origin_(body.origin()) { body.set_root(*this); }
  virtual ~root_task() {
    if (body_ != nullptr) promise_base::destroy_chain(*body_);  // it has not been started
  }

 private:
  friend class weft::executor;
  friend struct debugger_layout;
  friend task_names names_of(const promise_base& item) noexcept;

  /// Moves the value out of the coroutine, which has ended.
  virtual void keep_result(const std::exception_ptr& failure) noexcept = 0;

  [[nodiscard]] bool running() const noexcept { return previous_ != nullptr; }
  void link(root_task*& first) noexcept {
    next_ = first;
    previous_ = &first;
    if (first != nullptr) first->previous_ = &next_;
    first = this;
  }
  void unlink() noexcept {
    *previous_ = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    previous_ = nullptr;
  }

  promise_base* body_;
  root_task** previous_ = nullptr;  // among all roots of the executor; null: it does not run
  root_task* next_ = nullptr;
  executor* home_ = nullptr;
  observer* observer_ = nullptr;
  const char* name_ = nullptr;
  root_waiter* waiter_ = nullptr;
  std::source_location origin_;
  linked_stop_source stop_;
  bool wanted_ = true;          // somebody holds it for the result's sake
  bool stopped_alone_ = false;  // by request_stop()
};

/// Whether it is a weft::error with errc::canceled.
[[nodiscard]] bool is_stop(const std::exception_ptr& failure) noexcept;

/// A root_task and what its task yields.
template <class T>
class root_of final : public root_task {
 public:
  /// errc::invalid_argument for a task that is empty.
  explicit root_of(task<T> body) : root_of(body.release()) {}

  /// The value, or the exception that left the task, once; after its end.
  T take() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    if (!value_) [[unlikely]]
      throw_misuse(errc::invalid_argument, "take the result of a task that has not ended, or whose result was taken");
    if constexpr (std::is_reference_v<T>) {
      return **std::exchange(value_, std::nullopt);
    } else if constexpr (!std::is_void_v<T>) {
      T value = std::move(*value_);
      value_.reset();
      return value;
    } else {
      value_.reset();
    }
  }

 private:
  using promise_type = task_promise<T>;
  struct nothing {};
  using stored =
      std::conditional_t<std::is_void_v<T>, nothing,
                         std::conditional_t<std::is_reference_v<T>, std::add_pointer_t<std::remove_reference_t<T>>, T>>;

  explicit root_of(std::coroutine_handle<> handle) noexcept
      : root_task(std::coroutine_handle<promise_type>::from_address(handle.address()).promise()), handle_(handle) {}

  void keep_result(const std::exception_ptr& failure) noexcept override {
    failure_ = failure;
    if (failure_) return;
    auto& body = std::coroutine_handle<promise_type>::from_address(handle_.address()).promise();
    try {
      if constexpr (std::is_void_v<T>) {
        value_.emplace();
      } else if constexpr (std::is_reference_v<T>) {
        value_.emplace(&body.take());
      } else {
        value_.emplace(body.take());
      }
    } catch (...) {  // of the value's move
      failure_ = std::current_exception();
    }
  }

  std::coroutine_handle<> handle_;
  std::optional<stored> value_;
  std::exception_ptr failure_;
};

/// Holds a root_of for the sake of its result.
template <class T>
class root_handle {
 public:
  root_handle() noexcept = default;
  explicit root_handle(task<T> body) : root_(new root_of<T>(std::move(body))) {}
  root_handle(root_handle&& other) noexcept : root_(std::exchange(other.root_, nullptr)) {}
  root_handle& operator=(root_handle&& other) noexcept {
    root_handle(std::move(other)).swap(*this);
    return *this;
  }
  ~root_handle() {
    if (root_ != nullptr) root_->let_go();
  }

  void swap(root_handle& other) noexcept { std::swap(root_, other.root_); }
  explicit operator bool() const noexcept { return root_ != nullptr; }
  root_of<T>& operator*() const noexcept { return *root_; }
  root_of<T>* operator->() const noexcept { return root_; }

 private:
  root_of<T>* root_ = nullptr;
};

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
    std::uint64_t tasks = 0;   ///< started side by side: in scopes, by run() and in the background
    std::uint64_t mail = 0;    ///< work that came from other threads
    std::uint64_t stalls = 0;  ///< turns longer than executor_options::stall_limit
  };
  [[nodiscard]] const counters& statistics() const noexcept { return counters_; }
  /// How many system calls its event driver has made, set-up aside.
  [[nodiscard]] std::uint64_t kernel_entries() const noexcept { return driver_->kernel_entries(); }

  /// All suspended tasks as text, a line each: the tree of scopes and of who awaits whom, what everybody waits for and
  /// since when. For a person at a console or a core dump's last words; the format may change. From its own thread.
  [[nodiscard]] std::string dump() const;

  /// The time as of lately, for dumps: read when the executor looks for work, and every 64 turns when it has much.
  [[nodiscard]] time_point coarse_now() const noexcept { return coarse_now_; }

  // What the parts of weft that stand on the runtime use. All but submit() from the executor's thread.

  /// Resumes `waiter` in a coming batch.
  void ready(detail::promise_base& waiter) noexcept {
    ready_.push(waiter);
    stir();
  }
  /// The same at the end of another coroutine that has no parent: instead of one, without a turn between.
  void ready_next(detail::promise_base& waiter) noexcept {
    if (detail::next_to_resume != nullptr) return ready(waiter);
    detail::next_to_resume = &waiter;
  }
  /// From any thread: has `work` run here.
  void submit(detail::remote_work& work) noexcept;
  /// From its own thread: takes back what another thread has submitted, or is about to submit, and has not run here.
  /// Waits for it, so nobody who is about to may wait for this thread.
  void withdraw(detail::remote_work& work) noexcept;
  void arm(detail::timer& item, time_point deadline) {
    timers_.arm(item, deadline);
    stir();
  }
  /// False if there is no memory for it.
  [[nodiscard]] bool try_arm(detail::timer& item, time_point deadline) noexcept try {
    arm(item, deadline);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
  void disarm(detail::timer& item) noexcept { timers_.disarm(item); }
  /// Whether a task may complete an operation without being suspended; false now and then, for others want their turn.
  [[nodiscard]] bool may_go_on() noexcept {
    constexpr unsigned most_at_once = 128;
    return ++at_once_ % most_at_once != 0;
  }
  [[nodiscard]] event_driver& io() noexcept {
    stir();
    return *driver_;
  }
  [[nodiscard]] weft::system_calls& calls() const noexcept { return *calls_; }
  [[nodiscard]] worker_pool& workers() const noexcept { return *workers_; }
  /// Runs `work` beside everything else; run() returns only after it has ended. It must not throw.
  /// errc::wrong_thread elsewhere than on this executor.
  /// `name`, a string literal, is what dumps and traces call it.
  void run_in_background(task<> work, const char* name = nullptr);
  /// The same with what has been made beforehand: allocates nothing.
  void run_in_background(detail::root_handle<void> work, const char* name = nullptr);
  /// Something that lives as long as the executor, created at the first call: queues and caches of the layers above,
  /// keyed by the address of a constant of theirs and by its owner (a device).
  class attachment {
   public:
    virtual ~attachment() = default;
  };
  [[nodiscard]] attachment* find_attachment(const void* key) const noexcept;
  attachment& attach(const void* key, std::unique_ptr<attachment> item);
  void drop_attachment(const void* key) noexcept;

  // For the loop of another library that drives this executor, on one thread, instead of run(). See asio_host.

  /// Serves what there is to do, a bounded number of turns. Call it again once the driver's wait_fd() is readable or
  /// the time that it yields has passed; zero: as soon as the others of that loop had their turn; empty: no limit.
  /// errc::wrong_thread on another thread than the first one that called it.
  [[nodiscard]] std::optional<duration> step();
  /// Whether there is anybody whom step() could serve: a task that has not ended, or something that is held open.
  [[nodiscard]] bool has_work() const noexcept { return roots_ != nullptr || held_open_ != 0; }
  /// Whether something can go on at once: on its own thread, or while that is known to rest.
  [[nodiscard]] bool work_waits() const noexcept {
    return !ready_.empty() || inbox_ != nullptr || mailbox_.load(std::memory_order_acquire) != nullptr;
  }
  /// Calls `function` as a task of this executor would, from its thread but outside of its turns.
  template <std::invocable Function>
  void visit(Function&& function) {
    const entered guard(this);
    std::forward<Function>(function)();
  }
  /// Who is told instead of the event driver that there is something to do; null: the driver again. From the executor's
  /// thread, or before anything else.
  class outer_loop {
   public:
    /// From any thread, also with locks of weft's held: it calls nothing of weft's, and waits for no thread that may.
    virtual void wake() noexcept = 0;

   protected:
    ~outer_loop() = default;  // an executor never owns it
  };
  void drive_from(outer_loop* loop) noexcept;
  [[nodiscard]] bool is_driven() const noexcept { return outer_.load(std::memory_order_relaxed) != nullptr; }
  /// As long as one lives, step() has something to serve although no task waits for it: an open connection answers its
  /// peer. Destroyed on the executor's thread.
  class held_open {
   public:
    explicit held_open(executor& home) noexcept : home_(home) { ++home_.held_open_; }
    held_open(const held_open&) = delete;
    held_open& operator=(const held_open&) = delete;
    ~held_open() { --home_.held_open_; }

   private:
    executor& home_;
  };

 private:
  friend class detail::root_task;
  friend struct detail::debugger_layout;
  class poller_watch;
  class dump_watch;
  class dump_text;
  class turn_watch;
  class background_observer final : public detail::root_task::observer {
   public:
    std::size_t outstanding = 0;

   private:
    void ended(std::exception_ptr failure, const char* task, std::source_location origin) noexcept override;
  };

  // Between two steps, something of this thread's gives us work: it must not wait for what the last step waits for.
  void stir() noexcept {
    if (stepping_asleep_) [[unlikely]]
      wake();
  }
  void wake() noexcept;

  // Makes it current on this thread, for a while.
  class entered {
   public:
    explicit entered(executor* self) noexcept : before_(current_) { current_ = self; }
    ~entered() { current_ = before_; }
    entered(const entered&) = delete;
    entered& operator=(const entered&) = delete;

   private:
    executor* before_;
  };

  void attach_thread();
  void run_to_end(detail::root_task& root, std::stop_token token);
  void run_until(const bool& done);
  [[nodiscard]] bool is_over(const bool& done) const noexcept { return done && background_.outstanding == 0; }
  [[nodiscard]] bool turn(const bool& done);
  [[nodiscard]] bool watched_turn(const bool& done);
  [[nodiscard]] bool serve_all();
  [[nodiscard]] bool kernel_look_is_due() noexcept;
  [[nodiscard]] bool spin();
  [[nodiscard]] bool spin_driver() noexcept;
  void sleep();
  [[nodiscard]] bool serve_turn();
  [[nodiscard]] bool spins_on() noexcept;
  void unwatch_all() noexcept;
  [[nodiscard]] bool fall_asleep() noexcept;
  void wake_up() noexcept;
  void wait();
  void arm_pollers() noexcept;
  void watch_pollers() noexcept;
  void disarm_pollers() noexcept;
  void look_at_the_clock() noexcept {
    coarse_now_ = now();
    time_is_fresh_ = true;
  }
  void run_mail(std::size_t budget) noexcept;
  void run_all_mail() noexcept;
  void take_mail() noexcept;
  void resume_ready() noexcept;
  std::size_t resume(detail::promise_base& first, std::size_t budget) noexcept;
  std::size_t poll_sources() noexcept;
  void expire_timers() noexcept;
  void check_thread(const char* what) const;
  [[nodiscard]] std::optional<duration> time_to_sleep(time_point start) const noexcept;
  void learn_gap(duration gap) noexcept;

  static constinit thread_local executor* current_;

  weft::clock* clock_;
  weft::system_calls* calls_;
  worker_pool* workers_;
  poll_policy policy_;
  duration longest_spin_;
  duration stall_limit_;
  turn_watch* watch_ = nullptr;  // non-null: somebody wants to know what happens in this turn
  duration typical_gap_;         // moving average of how long completions let us wait; decides how long to spin

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
  unsigned turns_without_look_ = 0;    // at the kernel
  std::uint64_t look_at_resumed_ = 0;  // once so many have been resumed, look at the kernel
  unsigned at_once_ = 0;               // counts operations that have completed without suspending
  time_point coarse_now_{};
  unsigned held_open_ = 0;
  bool stepping_asleep_ = false;            // step() has left us asleep
  std::optional<time_point> idle_since_;    // as step() sees it
  bool time_is_fresh_ = false;              // coarse_now_ is of this turn, or of the wait before it
  detail::root_task* roots_ = nullptr;      // all that have started, youngest first
  std::unique_ptr<dump_watch> dump_watch_;  // only with dump_on_signal

  // The mailbox: pushed by any thread, newest first; taken whole by the owner.
  std::atomic<detail::remote_work*> mailbox_{nullptr};
  detail::remote_work* inbox_ = nullptr;  // taken from the mailbox, oldest first
  // true: the owner is about to wait in the kernel, and whoever sets it to false must wake the driver.
  // The owner publishes true before it looks at the mailbox a last time; a sender pushes before it looks here.
  std::atomic<bool> sleeping_{false};
  std::atomic<outer_loop*> outer_{nullptr};  // null: whoever takes the flag down wakes the driver
  // How many threads are inside submit(): what one of them has pushed may end the executor before it has left.
  std::atomic<unsigned> submitting_{0};
  const detail::birthplace birthplace_;
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

}  // namespace detail

template <std::invocable Function>
void executor::post(Function function) {
  submit(*new detail::posted_function<Function>(std::move(function)));
}

template <class T>
T executor::run(task<T> root, std::stop_token token) {
  detail::root_handle<T> held(std::move(root));
  run_to_end(*held, std::move(token));
  return held->take();
}

template <class T>
T executor::run(task<T> root) {
  return run(std::move(root), std::stop_token());
}

}  // namespace weft
