// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/attachment.hpp>
#include <weft/runtime/core/birthplace.hpp>
#include <weft/runtime/core/coarse_clock.hpp>
#include <weft/runtime/core/idle_frames.hpp>
#include <weft/runtime/core/kernel_looks.hpp>
#include <weft/runtime/core/late_work.hpp>
#include <weft/runtime/core/mailbox.hpp>
#include <weft/runtime/core/poller_set.hpp>
#include <weft/runtime/core/ready_queue.hpp>
#include <weft/runtime/core/remote_work.hpp>
#include <weft/runtime/core/root_observer.hpp>
#include <weft/runtime/core/spin_window.hpp>
#include <weft/runtime/executor_counters.hpp>
#include <weft/runtime/executor_options.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/event_driver.hpp>
#include <weft/runtime/system/poller.hpp>
#include <weft/runtime/system/system_calls.hpp>
#include <weft/runtime/system/timer.hpp>
#include <weft/runtime/task.hpp>

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

namespace weft {

class executor;
class worker_pool;

namespace detail {

/// The number of this thread. Never reused, unlike std::thread::id, so a later thread is not taken for one that has
/// ended.
[[nodiscard]] std::uint64_t this_thread_number() noexcept;

class root_task;
class turn_watch;

}  // namespace detail

/// The loop of an executor, for the parts of weft that are built on the runtime. Users see only executor, which derives
/// privately from this; core_of() converts.
///
/// One turn serves the mailbox, ready tasks, pollers, late work, timers and the kernel, each with a bounded batch, so
/// that none can starve another. All calls come from the executor's thread, unless their comment says otherwise.
class executor_core {
 public:
  executor_core(const executor_core&) = delete;
  executor_core& operator=(const executor_core&) = delete;

  /// The core of the executor that runs on this thread, or null.
  [[nodiscard]] static executor_core* current() noexcept { return current_; }
  /// From any thread: whether it runs on the calling thread.
  [[nodiscard]] bool on_own_thread() const noexcept { return current_ == this; }
  /// From any thread: see executor::belongs_to_this_thread().
  [[nodiscard]] bool belongs_to_this_thread() const noexcept;
  /// From any thread: whether the calling thread runs this executor, or has run it.
  [[nodiscard]] bool runs_on_this_thread() const noexcept {
    return thread_.load(std::memory_order_relaxed) == detail::this_thread_number();
  }
  /// The core of an executor that another library's loop drives on this thread, or null. Between its steps it is not
  /// current().
  [[nodiscard]] static executor_core* driven_here() noexcept;

  /// The time of executor_options::clock.
  [[nodiscard]] time_point now() const noexcept { return time_.now(); }
  /// A recent time: read whenever the executor waits for work, and about every 64 turns while it has much.
  [[nodiscard]] time_point coarse_now() const noexcept { return time_.recent(); }
  /// The event driver, for starting an operation. Wakes another library's loop that sleeps between two steps.
  [[nodiscard]] event_driver& io() noexcept {
    stir();
    return *driver_;
  }
  /// The event driver, for queries.
  [[nodiscard]] const event_driver& io() const noexcept { return *driver_; }
  /// The system calls of executor_options::system_calls.
  [[nodiscard]] weft::system_calls& calls() const noexcept { return *calls_; }
  /// The worker threads for calls that block.
  [[nodiscard]] worker_pool& workers() const noexcept { return *workers_; }
  /// See executor::dump().
  [[nodiscard]] std::string dump() const;

  // Ready coroutines.

  /// Resumes `waiter` in a coming batch.
  void ready(detail::promise_base& waiter) noexcept {
    ready_.push(waiter);
    stir();
  }
  /// ready() for a task that lets others go first: the executor serves its other sources before it begins a new batch.
  void give_way(detail::promise_base& waiter) noexcept {
    gives_way_ = true;
    ready(waiter);
  }
  /// Called at the end of a coroutine that has no parent: resumes `waiter` in its place, without a turn in between; or
  /// like ready() if another coroutine has that place.
  void ready_next(detail::promise_base& waiter) noexcept {
    if (detail::next_to_resume != nullptr) return ready(waiter);
    detail::next_to_resume = &waiter;
  }
  /// Whether a task may complete an operation without being suspended; false now and then, so that others have a turn.
  [[nodiscard]] bool may_go_on() noexcept { return ready_.may_go_on(); }
  /// How many coroutines have become ready so far.
  [[nodiscard]] std::uint64_t readied() const noexcept { return ready_.pushed(); }
  /// Whether the first `so_many` of these, and the coroutines that they left in next_to_resume, have been resumed.
  [[nodiscard]] bool has_resumed(std::uint64_t so_many) const noexcept {
    return ready_.popped() >= std::max(so_many, broken_off_);
  }

  /// Runs `work` in this turn or the next, after the turn's batch of ready tasks.
  void put_off(detail::late_work& work) noexcept {
    late_.push(work);
    stir();
  }
  /// Undoes put_off(). Does nothing if `work` was not put off, or has run.
  void take_back(detail::late_work& work) noexcept { late_.remove(work); }

  // Work from other threads.

  /// From any thread: queues `work`, which runs in a coming turn, or at the latest in the executor's destructor, on the
  /// thread that destroys the executor.
  void submit(detail::remote_work& work) noexcept;
  /// submit(), unless the executor has ended: then false, and `work` is not touched. Accepted work runs, at the latest
  /// at the executor's end, when has_ended() is true.
  [[nodiscard]] bool submit_unless_ended(detail::remote_work& work) noexcept;
  /// From any thread: whether run() has returned, or is about to, and has not been called again. True also in the
  /// executor's destructor.
  [[nodiscard]] bool has_ended() const noexcept { return mail_.is_closed(); }
  /// See executor::post(). Allocates: for work that recurs, derive from detail::remote_work and use submit().
  template <std::invocable Function>
  void post(Function function) {
    submit(*new detail::posted_function<Function>(std::move(function)));
  }
  /// Withdraws work that another thread has submitted, or is about to, and that has not run. Waits for that thread,
  /// which therefore must not wait for this one. On the executor's thread, or on the one that destroys it.
  void withdraw(detail::remote_work& work) noexcept;

  // Timers.

  /// Makes the timer fire at `deadline`. Throws std::bad_alloc.
  void arm(detail::timer& item, time_point deadline) {
    if (timers_.empty()) {
      timers_seen_ = time_.recent();
      patience_end_ = {};
    }
    timers_.arm(item, deadline);
    stir();
  }
  /// arm(); false if there is no memory.
  [[nodiscard]] bool try_arm(detail::timer& item, time_point deadline) noexcept try {
    arm(item, deadline);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
  /// Disarms a timer. Does nothing if it is not armed.
  void disarm(detail::timer& item) noexcept { timers_.disarm(item); }

  // Pollers: see executor::add_poller().

  /// See executor::add_poller().
  void add_poller(poller& source);
  /// See executor::remove_poller().
  void remove_poller(poller& source) noexcept;

  // Objects of the layers above that live as long as the executor, such as the queues of a device.

  /// The object attached by `key`, or null. A key is the address of a constant, or of the object's owner.
  [[nodiscard]] detail::attachment* find_attachment(const void* key) const noexcept;
  /// Keeps `item` until it is dropped, or the executor is destroyed. Nothing may be attached by this key already.
  detail::attachment& attach(const void* key, std::unique_ptr<detail::attachment> item);
  /// Destroys the object attached by this key, if there is one.
  void drop_attachment(const void* key) noexcept;

  // Work in the background.

  /// Counts a background task that starts now, and returns its observer: run() returns only after the task has ended.
  /// See run_in_background(). errc::wrong_thread on any thread but the executor's.
  [[nodiscard]] detail::root_observer& begin_background();

  /// A base of objects that use the executor as long as they live, also between two runs: a connection, a listener.
  /// Destroying the executor before them ends the program with a message. Made and destroyed on any thread.
  class dependent {
   public:
    /// Depends on `home` from now on.
    explicit dependent(executor_core& home) noexcept : home_(home) {
      home_.dependents_.fetch_add(1, std::memory_order_relaxed);
    }
    dependent(const dependent&) = delete;
    dependent& operator=(const dependent&) = delete;
    ~dependent() { home_.dependents_.fetch_sub(1, std::memory_order_release); }

   protected:
    executor_core& home_;  ///< the executor
  };
  /// Keeps step() serving although no task waits, because an open connection answers its peer. Made and destroyed on
  /// the executor's thread.
  class held_open : private dependent {
   public:
    /// Keeps `home` open for as long as this object lives.
    explicit held_open(executor_core& home) noexcept : dependent(home) { ++home_.held_open_; }
    held_open(const held_open&) = delete;
    held_open& operator=(const held_open&) = delete;
    ~held_open() { --home_.held_open_; }
  };
  /// Whether any dependent exists.
  [[nodiscard]] bool has_dependents() const noexcept { return dependents_.load(std::memory_order_acquire) != 0; }

  // The loop of another library drives this executor, on one thread, instead of run(): see asio_host.

  /// Serves the executor for a bounded number of turns. Call it again when the driver's wait_fd() is readable,
  /// outer_loop::wake() was called, or the returned time has passed; zero: as soon as other handlers of that loop have
  /// run; empty: no limit. If a task has set `interrupted`, ends early, usually before it asks the kernel for news:
  /// that loop then has work whose outcome is to be served together with the rest. errc::wrong_thread on any thread but
  /// the first that called step() or run().
  [[nodiscard]] std::optional<duration> step(const bool& interrupted);
  /// step() without interruption.
  [[nodiscard]] std::optional<duration> step() {
    const bool never = false;
    return step(never);
  }
  /// Whether step() has anything to serve: a task that has not ended, or a held_open object.
  [[nodiscard]] bool has_work() const noexcept { return roots_ != nullptr || held_open_ != 0; }
  /// Whether there is work to do at once. Call it on the executor's thread, or while the executor is known to rest.
  [[nodiscard]] bool work_waits() const noexcept { return !ready_.empty() || !late_.empty() || !mail_.empty(); }
  /// Calls `function` as a task of this executor would, from its thread but outside of its turns.
  template <std::invocable Function>
  void visit(Function&& function) {
    const entered guard(this);
    std::forward<Function>(function)();
  }
  /// The loop that is woken instead of the event driver.
  class outer_loop {
   public:
    /// Wakes the loop, on any thread, perhaps under weft's locks: must not call weft, nor wait for a thread that may.
    virtual void wake() noexcept = 0;

   protected:
    ~outer_loop() = default;  // an executor never owns it
  };
  /// Sets the loop to wake; null: the event driver. Call on the executor's thread, or while the executor is not in use.
  void drive_from(outer_loop* loop) noexcept;
  /// Whether another library's loop drives this executor: drive_from().
  [[nodiscard]] bool is_driven() const noexcept { return outer_.load(std::memory_order_relaxed) != nullptr; }

 protected:
  /// See executor's constructor.
  explicit executor_core(executor_options options);
  ~executor_core();

 private:
  friend class executor;
  friend class detail::root_task;
  friend struct detail::debugger_layout;
  class dump_watch;
  class dump_text;
  // resting: before the first run() or step(), or after a run()
  // serving: in run(), in a step(), or between two steps of which the second is due at once
  // asleep:  the last step() has gone to sleep
  enum class activity : std::uint8_t { resting, serving, asleep };
  class background_observer final : public detail::root_observer {
   public:
    std::size_t outstanding = 0;

   private:
    void ended() noexcept override { --outstanding; }
    void failed(std::exception_ptr failure, const char* task, std::source_location origin) noexcept override;
  };

  // Called when this thread adds work: wakes the other loop, which may sleep between two steps until something happens.
  void stir() noexcept {
    if (activity_ == activity::asleep) [[unlikely]]
      wake();
  }
  void wake() noexcept;

  // Makes an executor current on this thread while this object lives.
  class entered {
   public:
    explicit entered(executor_core* self) noexcept : before_(current_) { current_ = self; }
    ~entered() { current_ = before_; }
    entered(const entered&) = delete;
    entered& operator=(const entered&) = delete;

   private:
    executor_core* before_;
  };

  void attach_thread();
  void go_on() noexcept;
  void run_until(const bool& done);
  [[nodiscard]] bool is_over(const bool& done) const noexcept { return done && background_.outstanding == 0; }
  [[nodiscard]] bool turn(const bool& done);
  [[nodiscard]] bool watched_turn(const bool& done);
  [[nodiscard]] bool serve_all();
  [[nodiscard]] bool kernel_look_is_due() noexcept;
  [[nodiscard]] bool spin();
  [[nodiscard]] bool spin_driver() noexcept;
  void sleep();
  [[nodiscard]] bool step_turn(const bool& interrupted);
  [[nodiscard]] bool watched_step_turn(const bool& interrupted);
  void go_on_stepping() noexcept;
  [[nodiscard]] bool spins_on() noexcept;
  void unwatch_all() noexcept;
  [[nodiscard]] bool fall_asleep() noexcept;
  [[nodiscard]] bool fall_asleep_beside_pollers() noexcept;
  void wake_up() noexcept;
  void wait();
  void wait_by_the_clock();
  [[nodiscard]] bool keeps_many_frames() const noexcept;
  [[nodiscard]] std::optional<duration> time_between_steps() noexcept;
  void run_mail(std::size_t budget) noexcept;
  void run_all_mail() noexcept;
  void end() noexcept;
  void serve_ready() noexcept;
  [[nodiscard]] bool takes_more(std::size_t budget) const noexcept;
  void resume_ready(std::size_t budget) noexcept;
  template <class Resume>
  std::size_t resume_batches(std::size_t budget, Resume resume) noexcept;
  template <class Resume>
  std::size_t resume_chain(detail::promise_base& first, std::size_t budget, Resume resume) noexcept;
  void run_late() noexcept;
  void expire_timers() noexcept;
  [[nodiscard]] bool has_caught_up() noexcept;
  void check_thread(const char* what) const;
  [[nodiscard]] std::optional<duration> time_to_sleep(time_point start) const noexcept;

  static constinit thread_local executor_core* current_;

  detail::coarse_clock time_;
  weft::system_calls* calls_;
  worker_pool* workers_;
  poll_policy policy_;
  duration stall_limit_;
  detail::turn_watch* watch_ = nullptr;  // non-null: this turn is timed or traced
  detail::spin_window window_;

  std::string driver_reason_;
  std::unique_ptr<event_driver> owned_driver_;
  event_driver* driver_;
  std::atomic<std::uint64_t> thread_{0};  // the number of the thread that runs this executor; 0: none yet

  detail::ready_queue ready_;
  bool gives_way_ = false;        // give_way() was called in this batch
  std::uint64_t broken_off_ = 0;  // readied() when resume_chain() last left a coroutine for later
  detail::late_list late_;
  detail::timer_queue timers_;
  time_point timers_seen_{};    // when a turn last looked at the timers
  time_point patience_end_{};   // until when timers that are due wait for what else has come; zero if they do not
  unsigned patient_turns_ = 0;  // how many turns they have waited: has_caught_up()
  detail::poller_set pollers_;
  detail::mailbox mail_;
  std::vector<std::pair<const void*, std::unique_ptr<detail::attachment>>> attachments_;
  background_observer background_;
  detail::live_executor_counters counters_;
  detail::kernel_looks kernel_looks_;
  detail::idle_frames idle_frames_;
  detail::idle_gap idle_gap_;  // between steps
  unsigned held_open_ = 0;
  std::atomic<std::size_t> dependents_{0};
  activity activity_ = activity::resting;
  detail::root_task* roots_ = nullptr;      // all root tasks that run, youngest first
  std::unique_ptr<dump_watch> dump_watch_;  // only with dump_on_signal

  // true: the owner is about to wait in the kernel, and the thread whose wake() sets it to false wakes outer_ or the
  // driver. The owner publishes true before its last look at the mailbox; a sender pushes before it looks here.
  std::atomic<bool> sleeping_{false};
  std::atomic<outer_loop*> outer_{nullptr};  // if not null, woken instead of the driver
  const detail::birthplace birthplace_;
};

/// The workers for jobs on resources: the executor's, if it has a pool of its own, else worker_pool::for_resources().
/// `home` may be null.
[[nodiscard]] worker_pool& resource_workers(const executor_core* home);

}  // namespace weft
