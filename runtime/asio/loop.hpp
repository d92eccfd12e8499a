// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/asio/library.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/sync/event.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <list>
#include <memory>
#include <new>
#include <optional>
#include <source_location>
#include <utility>
#include <vector>

namespace weft::detail {

class asio_loop;

/// Memory for one function that waits in an io_context's queue, so that posting it cannot fail.
class asio_reserve {
 public:
  static constexpr std::size_t bytes = 256;
  [[nodiscard]] void* place() noexcept { return memory_.data(); }

 private:
  alignas(std::max_align_t) std::array<std::byte, bytes> memory_;
};
template <class T>
class asio_reserve_allocator {
 public:
  using value_type = T;
  explicit asio_reserve_allocator(asio_reserve& from) noexcept : from_(&from) {}
  template <class U>
  explicit(false) asio_reserve_allocator(const asio_reserve_allocator<U>& other) noexcept : from_(other.from_) {}
  [[nodiscard]] T* allocate(std::size_t) noexcept {
    static_assert(sizeof(T) <= asio_reserve::bytes);
    static_assert(alignof(T) <= alignof(std::max_align_t));
    return static_cast<T*>(from_->place());
  }
  void deallocate(T*, std::size_t) noexcept {}
  friend bool operator==(const asio_reserve_allocator&, const asio_reserve_allocator&) = default;

 private:
  template <class>
  friend class asio_reserve_allocator;
  asio_reserve* from_;
};

/// A function for the io_context's queue that calls a member of an asio_loop. A reserve has room for one at a time.
class asio_nudge {
 public:
  using allocator_type = asio_reserve_allocator<void>;
  using member = void (asio_loop::*)();

  asio_nudge(std::shared_ptr<asio_loop> loop, member what, asio_reserve& memory) noexcept
      : loop_(std::move(loop)), what_(what), memory_(&memory) {}
  [[nodiscard]] allocator_type get_allocator() const noexcept { return allocator_type(*memory_); }
  void operator()() { ((*loop_).*what_)(); }

 private:
  std::shared_ptr<asio_loop> loop_;
  member what_;
  asio_reserve* memory_;
};

/// The calls that one request_stop() stops.
struct asio_wave {
  stop_source stop;
  std::size_t calls = 0;  ///< calls that have not ended
};

/// An operation of weft that completes an Asio handler. It owns itself.
class asio_call_base : protected root_observer {
 public:
  asio_call_base(const asio_call_base&) = delete;
  asio_call_base& operator=(const asio_call_base&) = delete;

  /// Starts the operation, or abandons it if the host is being destroyed. Called once, on the io_context's thread.
  void start() noexcept;
  /// Destroys the call without calling its handler: instead of start(), or for a failure that the handler cannot take.
  virtual void abandon() noexcept = 0;

 protected:
  explicit asio_call_base(std::shared_ptr<asio_loop>&& loop) noexcept : loop_(std::move(loop)) {}
  ~asio_call_base() = default;

  [[nodiscard]] asio_loop& loop() const noexcept { return *loop_; }
  /// Allows request_stop() until the operation has ended. Call it before start().
  void allow_stop() noexcept { stops_alone_ = true; }
  /// Stops this operation alone. On the io_context's thread.
  void request_stop() noexcept;

 private:
  friend class asio_loop;

  /// Starts the coroutine of the operation, or one that awaits it. May throw if memory is short.
  virtual void start_task(executor_core& where, stop_token token) = 0;
  /// Keeps the result or the failure, and destroys the operation. Called on the executor's thread.
  virtual void operation_ended(std::exception_ptr failure) noexcept = 0;
  /// Destroys itself and passes the result to the handler: at once where the handler's executor allows that, or
  /// (`later`) through its queue. Throws what the handler throws, and a failure that the handler cannot be given.
  virtual void complete(bool later) = 0;

  void ended() noexcept final { end(nullptr); }
  void failed(std::exception_ptr failure, const char*, std::source_location) noexcept final { end(std::move(failure)); }
  void end(std::exception_ptr failure) noexcept;

  std::shared_ptr<asio_loop> loop_;
  asio_wave* wave_ = nullptr;               // from start() until the operation ends
  std::optional<linked_stop_source> stop_;  // from start() to the end, for a call that may be stopped alone
  bool stops_alone_ = false;
  bool stopped_early_ = false;      // request_stop() came before start()
  asio_call_base* next_ = nullptr;  // in the list of ended calls
};

/// The state of an asio_host; handlers that are under way keep it alive.
class asio_loop final : public std::enable_shared_from_this<asio_loop>, private executor_core::outer_loop {
 public:
  asio_loop(asio::io_context& context, const executor_options& options)
      : context_(&context), guest_(options), descriptor_(std::in_place, context), timer_(std::in_place, context) {
    if (core_of(guest_).io().wait_fd() < 0)
      throw error(errc::not_supported, "drive an executor with a simulated event driver from an io_context");
    core_of(guest_).attach(&key, std::make_unique<mark>(*this));
    core_of(guest_).drive_from(this);
  }
  asio_loop(const asio_loop&) = delete;
  asio_loop& operator=(const asio_loop&) = delete;
  ~asio_loop() = default;

  /// The loop that drives an executor; null if the executor runs by itself.
  [[nodiscard]] static asio_loop* of(const executor_core& guest) noexcept {
    auto* const found = static_cast<mark*>(guest.find_attachment(&key));
    return found != nullptr ? &found->owner : nullptr;
  }

  [[nodiscard]] executor& guest() noexcept { return guest_; }
  [[nodiscard]] asio::io_context& context() const noexcept { return *context_; }

  /// Makes the executor look for work soon. On the io_context's thread, like the functions below.
  void kick() noexcept {
    kicked_ = true;
    if (pumping_ || finishing_ || std::exchange(scheduled_, true)) return;
    asio::post(*context_, asio_nudge(shared_from_this(), &asio_loop::kicked, kick_memory_));
  }
  void request_stop() {
    asio_wave& stopped = waves_.back();
    if (stopped.calls == 0) return kick();
    if (next_wave_.empty()) next_wave_.emplace_back();
    waves_.splice(waves_.end(), next_wave_);
    core_of(guest_).visit([&stopped] { stopped.stop.request_stop(); });
    kick();
    try {
      next_wave_.emplace_back();
    } catch (const std::bad_alloc&) {  // the next request_stop() makes one
    }
  }

  /// Stops all tasks, waits for their end, and leaves the io_context. Ends the program inside a task, and on another
  /// thread if there is work left, because tasks cannot run there.
  void finish() noexcept;
  /// Whether finish() has begun: the io_context does not run then, so tasks must not wait for its handlers.
  [[nodiscard]] bool finishing() const noexcept { return finishing_; }

 private:
  friend class asio_call_base;

  // Leads an operation of Asio from its task's executor to the loop.
  struct mark final : attachment {
    explicit mark(asio_loop& loop) noexcept : owner(loop) {}
    asio_loop& owner;
  };
  static constexpr char key = 0;

  void kicked() {
    scheduled_ = false;
    pump();
  }
  // From any thread. Posts nothing if a call of woken() is on its way, because that call will look for work.
  void wake() noexcept override {
    if (waking_.exchange(true, std::memory_order_acq_rel)) return;
    asio::post(*context_, asio_nudge(shared_from_this(), &asio_loop::woken, wake_memory_));
  }
  void woken() {
    waking_.exchange(false, std::memory_order_acq_rel);
    pump();
  }
  void pump();
  void rest(std::optional<duration> time);
  void watch();
  void set_timer(duration time);
  void leave();
  void deliver(bool later);
  task<> end_all();

  asio::io_context* context_;  // null: finished
  executor guest_;
  std::list<asio_wave> waves_{1};      // new calls join the last one
  std::list<asio_wave> next_wave_{1};  // made ahead, so that a stop needs no memory
  // Their services are older than asio_service, so its shutdown() may still use them. Empty: finished.
  std::optional<asio::posix::stream_descriptor> descriptor_;  // the event driver's wait_fd(), from the first watch() on
  std::optional<asio::steady_timer> timer_;
  std::optional<std::chrono::steady_clock::time_point> timer_due_;
  bool watching_ = false;            // a wait for the descriptor is in progress, or its handler is due
  bool scheduled_ = false;           // kicked() is posted
  std::atomic<bool> waking_{false};  // woken() is posted
  asio_reserve kick_memory_;
  asio_reserve wake_memory_;
  bool pumping_ = false;
  bool kicked_ = false;  // there may be work since the last step
  bool finishing_ = false;
  std::size_t calls_ = 0;  // calls that have not ended
  event all_ended_;
  asio_call_base* first_ended_ = nullptr;  // ended calls that wait for complete(), oldest first
  asio_call_base* last_ended_ = nullptr;
  bool some_ended_ = false;  // the list is not empty, so the step that has ended the calls returns early
};

/// Finishes the loops of an io_context that is destroyed before their hosts. Keeps finished loops with connections or
/// listeners, which Asio's coroutines hold until the io_context destroys its handlers.
class asio_service final : public asio::execution_context::service {
 public:
  using key_type = asio_service;
  static inline asio::execution_context::id id;  // NOLINT(readability-identifier-naming): Asio's name

  explicit asio_service(asio::execution_context& owner) : service(owner) {}
  void add(const std::shared_ptr<asio_loop>& loop) {
    std::erase_if(kept_, [](const auto& item) { return !core_of(item->guest()).has_dependents(); });
    std::erase_if(loops_, [](const auto& item) { return item.expired(); });
    loops_.push_back(loop);
    kept_.reserve(loops_.size() + kept_.size());
  }
  /// Keeps a loop that has finished.
  void keep(std::shared_ptr<asio_loop> loop) { kept_.push_back(std::move(loop)); }

 private:
  void shutdown() noexcept override {
    for (const auto& item : loops_) {
      if (const auto loop = item.lock()) loop->finish();
    }
  }

  std::vector<std::weak_ptr<asio_loop>> loops_;
  std::vector<std::shared_ptr<asio_loop>> kept_;
};

inline void asio_loop::pump() {
  if (context_ == nullptr) return;
  kicked_ = true;
  if (pumping_) return;  // called from a handler that runs the io_context
  // Other handlers get a turn after most_steps steps that ended calls have cut short; any other step counts long_step
  // times.
  constexpr int most_steps = 64;
  constexpr int long_step = 8;
  struct pumping {
    explicit pumping(asio_loop& owner) noexcept : loop(owner) { loop.pumping_ = true; }
    ~pumping() { loop.pumping_ = false; }
    pumping(const pumping&) = delete;
    pumping& operator=(const pumping&) = delete;
    asio_loop& loop;
  };
  std::optional<duration> time;
  try {
    const pumping guard(*this);
    int left = most_steps;
    do {
      kicked_ = false;
      time = core_of(guest_).step(some_ended_);
      left -= some_ended_ ? 1 : long_step;
      deliver(false);
      if (context_ == nullptr) return;  // a handler has destroyed the host
    } while (left > 0 && (kicked_ || time == duration::zero()));
  } catch (...) {  // a handler's exception leaves io_context::run(); the rest follows later
    if (context_ != nullptr) kick();
    throw;
  }
  try {
    rest(kicked_ ? duration::zero() : time);
  } catch (...) {  // no memory for a wait: the exception leaves io_context::run(), too
    kick();
    throw;
  }
}

inline void asio_loop::rest(std::optional<duration> time) {
  if (time == duration::zero()) return kick();
  if (!core_of(guest_).has_work()) return leave();
  watch();
  if (time) set_timer(*time);
}

// Cancels our waits, so that the io_context can run out of work.
inline void asio_loop::leave() {
  if (watching_) descriptor_->cancel();
  if (timer_due_) timer_->cancel();
  timer_due_.reset();
}

inline void asio_loop::watch() {
  if (watching_) return;
  if (!descriptor_->is_open()) descriptor_->assign(core_of(guest_).io().wait_fd());
  descriptor_->async_wait(asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](const asio_code& failure) {
                            self->watching_ = false;
                            if (!failure) return self->pump();
                            // Canceled, but there may be work to wait for again by now.
                            if (self->context_ != nullptr && core_of(self->guest_).has_work()) self->kick();
                          });
  watching_ = true;
}

inline void asio_loop::set_timer(duration time) {
  constexpr duration longest = std::chrono::hours(1);
  const auto due = std::chrono::steady_clock::now() + std::min(time, longest);
  if (timer_due_ && *timer_due_ <= due) return;  // early enough: the step that the timer causes sets it anew
  timer_due_.reset();
  timer_->expires_at(due);
  timer_->async_wait([self = shared_from_this()](const asio_code& failure) {
    if (failure) return;
    self->timer_due_.reset();
    self->pump();
  });
  timer_due_ = due;
}

inline void asio_loop::deliver(bool later) {
  while (first_ended_ != nullptr) {
    asio_call_base& call = *first_ended_;
    first_ended_ = call.next_;
    if (first_ended_ == nullptr) {
      last_ended_ = nullptr;
      some_ended_ = false;
    }
    call.complete(later);
  }
}

inline task<> asio_loop::end_all() {
  for (asio_wave& each : waves_) each.stop.request_stop();
  if (calls_ != 0) co_await all_ended_.wait();
}

inline void asio_loop::finish() noexcept try {
  if (context_ == nullptr) return;
  if (executor::current() != nullptr) terminate_because("an asio_host was destroyed inside a task");
  finishing_ = true;
  core_of(guest_).drive_from(nullptr);
  if (guest_.belongs_to_this_thread()) {
    guest_.run(end_all());
  } else if (core_of(guest_).has_work()) {
    terminate_because("an asio_host with work was destroyed on another thread than that of its io_context");
  }
  deliver(true);
  if (descriptor_->is_open()) descriptor_->release();
  descriptor_.reset();
  timer_.reset();
  asio::io_context& context = *std::exchange(context_, nullptr);
  if (core_of(guest_).has_dependents()) asio::use_service<asio_service>(context).keep(shared_from_this());
} catch (...) {
  terminate_because("an asio_host could not be destroyed: there is no memory for its last task, or for a handler");
}

inline void asio_call_base::start() noexcept {
  asio_loop& loop = *loop_;
  if (loop.finishing_) return abandon();
  ++loop.calls_;
  wave_ = &loop.waves_.back();
  ++wave_->calls;
  stop_token token = wave_->stop.get_token();
  if (stops_alone_) {
    stop_.emplace(token);
    if (stopped_early_) stop_->request_stop();
    token = stop_->get_token();
  }
  try {
    // The executor needs no kick: it is in a step, or one is due, or it is asleep and wakes the loop itself.
    start_task(core_of(loop.guest_), token);
  } catch (...) {  // no memory for a frame
    end(std::current_exception());
    loop.kick();
  }
}

inline void asio_call_base::request_stop() noexcept {
  if (!stop_) {
    stopped_early_ = true;
    return;
  }
  core_of(loop_->guest_).visit([this] { stop_->request_stop(); });
  loop_->kick();
}

inline void asio_call_base::end(std::exception_ptr failure) noexcept {
  operation_ended(std::move(failure));
  stop_.reset();
  asio_loop& loop = *loop_;
  (loop.last_ended_ != nullptr ? loop.last_ended_->next_ : loop.first_ended_) = this;
  loop.last_ended_ = this;
  loop.some_ended_ = true;
  const bool is_over = --wave_->calls == 0 && wave_ != &loop.waves_.back();
  if (is_over) loop.waves_.remove_if([this](const asio_wave& each) { return &each == wave_; });
  if (--loop.calls_ == 0 && loop.finishing_) loop.all_ended_.set();
}

}  // namespace weft::detail
