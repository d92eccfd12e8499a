// SPDX-License-Identifier: Apache-2.0

/// @file
/// weft inside a program that is built on Asio (standalone, 1.22 or newer). The only header of the runtime that needs
/// Asio.

#pragma once

#include <weft/runtime/core/awaitable.hpp>
#include <weft/runtime/core/frame_allocator.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/sync/event.hpp>

#include <asio/any_io_executor.hpp>
#include <asio/associated_allocator.hpp>
#include <asio/associated_cancellation_slot.hpp>
#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/bind_executor.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/dispatch.hpp>
#include <asio/error.hpp>
#include <asio/execution_context.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <new>
#include <optional>
#include <source_location>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft {

namespace detail {

/// The code that Asio's users compare with: a stop is asio::error::operation_aborted there.
inline std::error_code to_asio(const std::error_code& code) noexcept {
  return code == make_error_code(errc::canceled) ? std::error_code(asio::error::operation_aborted) : code;
}
inline std::error_code from_asio(const std::error_code& code) noexcept {
  return code == std::error_code(asio::error::operation_aborted) ? make_error_code(errc::canceled) : code;
}

/// A failure with its message, and the code that Asio's users expect. Null, and an exception that is not a weft::error,
/// stay what they are.
inline std::exception_ptr to_asio(std::exception_ptr failure) noexcept {
  if (!failure) return failure;
  try {
    std::rethrow_exception(failure);
  } catch (const error& known) {
    const std::error_code code = to_asio(known.code());
    if (code == known.code()) return failure;
    try {
      return std::make_exception_ptr(known.with_code(code));
    } catch (const std::bad_alloc&) {
      return std::current_exception();
    }
  } catch (...) {
    return failure;
  }
}

/// Makes start_asio_call() complete a token that throws with the exception_ptr of to_asio().
struct asio_thrown;

/// Whether a token throws failures. It gets the exception itself then, because an error_code has no room for its
/// message.
template <class Token>
inline constexpr bool asio_throws = false;
template <class Allocator>
inline constexpr bool asio_throws<asio::use_future_t<Allocator>> = true;
template <class Token, class Slot>
inline constexpr bool asio_throws<asio::cancellation_slot_binder<Token, Slot>> = asio_throws<Token>;
template <class Token, class Executor>
inline constexpr bool asio_throws<asio::executor_binder<Token, Executor>> = asio_throws<Token>;
#if defined(ASIO_HAS_CO_AWAIT)
template <class Executor>
inline constexpr bool asio_throws<asio::use_awaitable_t<Executor>> = true;
#endif

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

/// A function for the io_context's queue that calls a member of an asio_loop. At most one at a time uses a reserve.
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

  /// Called once, on the io_context's thread.
  void start() noexcept;
  /// Instead of start(): destroys the call, and the handler uncalled.
  virtual void abandon() noexcept = 0;

 protected:
  explicit asio_call_base(std::shared_ptr<asio_loop>&& loop) noexcept : loop_(std::move(loop)) {}
  ~asio_call_base() = default;

  [[nodiscard]] asio_loop& loop() const noexcept { return *loop_; }
  /// Called before start(), to allow request_stop() until the end.
  void allow_stop() noexcept { stops_alone_ = true; }
  /// Stops this operation alone. On the io_context's thread.
  void request_stop() noexcept;

 private:
  friend class asio_loop;

  /// Starts the coroutine of the operation, or one that awaits it. May throw if memory is short.
  virtual void start_task(executor_core& where, stop_token token) = 0;
  /// On the executor: keeps the failure, if there is one, and destroys the operation.
  virtual void operation_ended(std::exception_ptr failure) noexcept = 0;
  /// Destroys itself and passes the result to the handler: at once where the handler's executor allows that, or
  /// (`later`) through its queue. Throws what the handler throws, and a failure that the handler cannot be given.
  virtual void complete(bool later) = 0;

  void ended(std::exception_ptr failure, const char* task, std::source_location origin) noexcept final;

  std::shared_ptr<asio_loop> loop_;
  asio_wave* wave_ = nullptr;               // from start() on
  std::optional<linked_stop_source> stop_;  // from start() on, for a call that may be stopped alone
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
    } catch (const std::bad_alloc&) {  // the next stop makes one
    }
  }

  /// Stops all tasks, waits for their end, and leaves the io_context. With tasks, a call on another thread ends the
  /// program, because they cannot run there.
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
  // From any thread. Posts nothing if a woken() is on its way, because that looks for work afterwards.
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
  std::list<asio_wave> waves_{1};      // the last one is for calls to come
  std::list<asio_wave> next_wave_{1};  // made ahead, so that a stop needs no memory
  // Made before asio_service, so that they may still be used when that is shut down. Empty: finished.
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
  bool some_ended_ = false;  // there are such calls, so the step that has ended them returns
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
  // After so many steps, other handlers have their turn. A step that handlers interrupt counts as a short one.
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
  } catch (...) {  // thrown by a handler: leaves io_context::run(); the rest follows later
    if (context_ != nullptr) kick();
    throw;
  }
  try {
    rest(kicked_ ? duration::zero() : time);
  } catch (...) {  // no memory to wait with: likewise leaves io_context::run()
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
                          [self = shared_from_this()](const std::error_code& failure) {
                            self->watching_ = false;
                            if (!failure) return self->pump();
                            // Canceled, but there may be work to wait for again by now.
                            if (self->context_ != nullptr && core_of(self->guest_).has_work()) self->watch();
                          });
  watching_ = true;
}

inline void asio_loop::set_timer(duration time) {
  constexpr duration longest = std::chrono::hours(1);
  const auto due = std::chrono::steady_clock::now() + std::min(time, longest);
  if (timer_due_ && *timer_due_ <= due) return;  // early enough: the step that it causes sets the next time
  timer_due_.reset();
  timer_->expires_at(due);
  timer_->async_wait([self = shared_from_this()](const std::error_code& failure) {
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
    ended(std::current_exception(), nullptr, {});
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

inline void asio_call_base::ended(std::exception_ptr failure, const char*, std::source_location) noexcept {
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

/// The type of a handler's value: T, or std::optional<T> if T has no default for a failure.
template <class T>
using asio_value = std::conditional_t<std::default_initializable<T>, T, std::optional<T>>;

/// The type of a handler's failure.
template <class Failure>
using asio_failure = std::conditional_t<std::is_same_v<Failure, asio_thrown>, std::exception_ptr, Failure>;

template <class Failure, class Value>
struct asio_signature {
  using type = void(asio_failure<Failure>, asio_value<Value>);
};
template <class Failure>
struct asio_signature<Failure, void> {
  using type = void(asio_failure<Failure>);
};

/// A handler with its arguments.
template <class Handler, class... Arguments>
class asio_answer {
 public:
  using allocator_type = asio::associated_allocator_t<Handler>;

  asio_answer(Handler handler, Arguments... arguments)
      : handler_(std::move(handler)), arguments_(std::move(arguments)...) {}
  [[nodiscard]] allocator_type get_allocator() const noexcept { return asio::get_associated_allocator(handler_); }
  void operator()() {
    std::apply([this](Arguments&... arguments) { std::move(handler_)(std::move(arguments)...); }, arguments_);
  }

 private:
  Handler handler_;
  std::tuple<Arguments...> arguments_;
};

/// The recycled memory of coroutine frames, for handlers without an associated allocator.
template <class T>
class frame_memory {
 public:
  using value_type = T;
  explicit frame_memory(const std::allocator<void>&) noexcept {}
  [[nodiscard]] T* allocate(std::size_t count) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__,
                  "a handler with extended alignment needs an associated allocator");
    return static_cast<T*>(allocate_frame(count * sizeof(T)));
  }
  void deallocate(T* place, std::size_t count) noexcept { free_frame(place, count * sizeof(T)); }
  friend bool operator==(const frame_memory&, const frame_memory&) = default;
};

/// The allocator for T that belongs to a handler's associated allocator.
template <class Allocator, class T>
using asio_allocator = std::conditional_t<std::is_same_v<Allocator, std::allocator<void>>, frame_memory<T>,
                                          typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;

/// Whether a handler's associated executor is that of an io_context, so that on its thread the handler may be called
/// directly.
template <class Executor>
bool is_executor_of(const Executor& wanted, const asio::io_context::executor_type& own) noexcept {
  if constexpr (std::is_same_v<Executor, asio::io_context::executor_type>) {
    return wanted == own;
  } else if constexpr (std::is_same_v<Executor, asio::any_io_executor>) {
    const auto* const inside = wanted.template target<asio::io_context::executor_type>();
    return inside != nullptr && *inside == own;
  } else {
    return false;
  }
}

template <class Failure, class Handler, class Operation>
class asio_call final : public asio_call_base {
  using value = await_result<Operation>;
  // An operation that derives from task<T> may have a member take_for_asio(root_of<T>&), which yields the result or
  // throws.
  static constexpr bool is_task = std::derived_from<Operation, task<value>>;
  using handler_executor = asio::associated_executor_t<Handler, asio::io_context::executor_type>;
  using allocator = asio_allocator<asio::associated_allocator_t<Handler>, asio_call>;
  using allocator_traits = std::allocator_traits<allocator>;

 public:
  /// Moves handler and operation once each, because moves of operations and of Asio's coroutines are not cheap.
  template <class GivenHandler, class GivenOperation>
  static asio_call& make(std::shared_ptr<asio_loop> loop, GivenHandler&& handler, GivenOperation&& operation) {
    allocator memory(asio::get_associated_allocator(handler));
    asio_call* const place = allocator_traits::allocate(memory, 1);
    try {
      return *::new (static_cast<void*>(place))
          asio_call(std::move(loop), std::forward<GivenHandler>(handler), std::forward<GivenOperation>(operation));
    } catch (...) {  // thrown by the handler's move, or by its cancellation slot, which allocates
      allocator_traits::deallocate(memory, place, 1);
      throw;
    }
  }
  void abandon() noexcept override {
    try {
      [[maybe_unused]] const Handler handler = take_handler_and_die();
    } catch (...) {  // thrown by the handler's move, and the call is gone
    }
  }

 private:
  template <class GivenHandler, class GivenOperation>
  asio_call(std::shared_ptr<asio_loop>&& loop, GivenHandler&& handler, GivenOperation&& operation)
      : asio_call_base(std::move(loop)),
        handler_(std::forward<GivenHandler>(handler)),
        operation_(std::in_place, std::forward<GivenOperation>(operation)) {
    const auto own = this->loop().context().get_executor();
    const handler_executor wanted = asio::get_associated_executor(handler_, own);
    if (!is_executor_of(wanted, own)) work_.emplace(wanted);
    auto slot = asio::get_associated_cancellation_slot(handler_);
    if (!slot.is_connected()) return;
    allow_stop();
    slot.assign([this](asio::cancellation_type type) {
      if (type != asio::cancellation_type::none) request_stop();
    });
  }
  ~asio_call() = default;

  // Starts a task itself; for anything else, a task that awaits it.
  void start_task(executor_core& where, stop_token token) override {
    if constexpr (is_task) {
      root_ = root_handle<value>(std::move(operation_->what));
      root_->start(where, *this, token, "asio");
    } else {
      const root_handle<void> root(await_operation(*this));
      root->start(where, *this, token, "asio");
    }
  }

  static task<> await_operation(asio_call& self) {
    if constexpr (std::is_void_v<value>) {
      co_await std::move(self.operation_->what);
    } else {
      self.value_.emplace(co_await std::move(self.operation_->what));
    }
  }

  void operation_ended(std::exception_ptr failure) noexcept override {
    failure_ = std::move(failure);
    if constexpr (is_task) take_result();
    operation_.reset();
  }
  // An operation that translates failures is asked for its result after a failure, too.
  void take_result() noexcept {
    constexpr bool translates = requires(Operation& what) { what.take_for_asio(*root_); };
    if (!root_) return;  // there was no memory for the task
    const root_handle<value> ended = std::move(root_);
    if (failure_ && !translates) return;
    failure_ = nullptr;
    try {
      if constexpr (translates) {
        keep([&] { return operation_->what.take_for_asio(*ended); });
      } else {
        keep([&] { return ended->take(); });
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
  }
  template <class Take>
  void keep(Take take) {
    if constexpr (std::is_void_v<value>) {
      take();
    } else {
      value_.emplace(take());
    }
  }

  // The code of the failure; a failure without one stays in failure_.
  std::error_code code() {
    if (!failure_) return {};
    try {
      std::rethrow_exception(std::exchange(failure_, nullptr));
    } catch (const std::system_error& known) {
      return to_asio(known.code());
    } catch (const std::bad_alloc&) {
      return std::make_error_code(std::errc::not_enough_memory);
    } catch (...) {
      failure_ = std::current_exception();
      return {};
    }
  }

  // Moves the handler out, then destroys the call, whose memory may be the handler's.
  Handler take_handler_and_die() {
    class end {
     public:
      explicit end(asio_call& of) noexcept : call_(of), memory_(asio::get_associated_allocator(of.handler_)) {}
      end(const end&) = delete;
      end& operator=(const end&) = delete;
      ~end() {
        call_.~asio_call();
        allocator_traits::deallocate(memory_, &call_, 1);
      }

     private:
      asio_call& call_;
      allocator memory_;
    };
    asio::get_associated_cancellation_slot(handler_).clear();
    const end guard(*this);
    return std::move(handler_);
  }

  void complete(bool later) override {
    // The branches look alike, but their types differ. NOLINTNEXTLINE(bugprone-branch-clone)
    if constexpr (std::is_same_v<Failure, std::exception_ptr>) {
      deliver(later, std::exchange(failure_, nullptr));
    } else if constexpr (std::is_same_v<Failure, asio_thrown>) {
      deliver(later, to_asio(std::exchange(failure_, nullptr)));
    } else {
      const std::error_code failure = code();
      if (failure_) {
        const std::exception_ptr unknown = failure_;
        asio::io_context& context = loop().context();
        abandon();
        if (!later) std::rethrow_exception(unknown);
        asio::post(context, [unknown] { std::rethrow_exception(unknown); });
        return;
      }
      deliver(later, std::error_code(failure));
    }
  }
  void deliver(bool later, asio_failure<Failure>&& failure) {
    // NOLINTNEXTLINE(bugprone-branch-clone)
    if constexpr (std::is_void_v<value>) {
      call_handler(later, std::move(failure));
    } else {
      call_handler(later, std::move(failure), value_ ? asio_value<value>(std::move(*value_)) : asio_value<value>());
    }
  }
  // Calls the handler as asio::dispatch() would: at once on the thread of the handler's io_context. What the handler
  // throws leaves io_context::run().
  template <class... Arguments>
  void call_handler(bool later, Arguments&&... arguments) {
    if (!later && !work_) {
      Handler handler = take_handler_and_die();
      return std::move(handler)(std::move(arguments)...);
    }
    const auto work = std::move(work_);
    const auto own = loop().context().get_executor();
    asio_answer<Handler, Arguments...> answer(take_handler_and_die(), std::move(arguments)...);
    if (!work) {
      asio::post(own, std::move(answer));
    } else if (later) {
      asio::post(work->get_executor(), std::move(answer));
    } else {
      asio::dispatch(work->get_executor(), std::move(answer));
    }
  }

  using stored = std::conditional_t<std::is_void_v<value>, bool, value>;
  struct nothing {};
  // Some operations are bases of others. A member is known to be of its exact class, so clang does not warn when it is
  // destroyed.
  struct held {
    template <class Given>
    explicit held(Given&& operation) : what(std::forward<Given>(operation)) {}
    Operation what;
  };
  // Empty: the handler belongs to the io_context of the loop, which has work until the call has completed.
  std::optional<asio::executor_work_guard<handler_executor>> work_;
  Handler handler_;
  std::optional<held> operation_;
  [[no_unique_address]] std::conditional_t<is_task, root_handle<value>, nothing> root_;  // only for a task
  std::optional<stored> value_;
  std::exception_ptr failure_;
};

/// A call on its way to the io_context's thread.
class asio_departure {
 public:
  explicit asio_departure(asio_call_base& call) noexcept : call_(&call) {}
  asio_departure(asio_departure&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
  asio_departure& operator=(asio_departure&&) = delete;
  ~asio_departure() {
    if (call_ != nullptr) call_->abandon();
  }
  void operator()() noexcept { std::exchange(call_, nullptr)->start(); }

 private:
  asio_call_base* call_;
};

/// Starts an operation that completes a token, for asio_host::async() and streams. From any thread.
template <class Failure, class Operation, class CompletionToken>
auto start_asio_call(std::shared_ptr<asio_loop>&& home, Operation&& operation, CompletionToken& token) {
  static_assert(!std::is_reference_v<Operation>);
  using signature = typename asio_signature<Failure, await_result<Operation>>::type;
  return asio::async_initiate<CompletionToken, signature>(
      [](auto&& handler, auto&& loop, auto&& what) {
        using handler_type = std::decay_t<decltype(handler)>;
        asio::io_context& context = loop->context();
        auto& call = asio_call<Failure, handler_type, Operation>::make(std::forward<decltype(loop)>(loop),
                                                                       std::forward<decltype(handler)>(handler),
                                                                       std::forward<decltype(what)>(what));
        if (context.get_executor().running_in_this_thread()) return call.start();
        asio::post(context, asio_departure(call));
      },
      token, std::move(home), std::move(operation));
}

/// start_asio_call() with the failure that suits the token: an std::error_code, or the exception if the token throws.
template <class Operation, class CompletionToken>
auto start_asio_operation(std::shared_ptr<asio_loop>&& home, Operation&& operation, CompletionToken& token) {
  using failure = std::conditional_t<asio_throws<std::decay_t<CompletionToken>>, asio_thrown, std::error_code>;
  return start_asio_call<failure>(std::move(home), std::move(operation), token);
}

}  // namespace detail

/// An executor in an asio::io_context, without a thread of its own: the thread that runs the io_context serves its
/// tasks and connections, and both sleep in one place.
///
///     asio::io_context io;
///     weft::asio_host host(io);
///     host.spawn(serve(device), asio::detached);
///     io.run();
///
/// One thread runs the io_context, always the same; several hosts need several io_contexts, each with its thread.
/// Tasks, pending operations and open connections are work: io_context::run() returns when there are none. While the
/// executor spins (executor_options::policy), the io_context polls.
///
/// Destroying the host, or the io_context before it, stops everything that has not ended and waits for it, at most as
/// long as connections take to close; the handlers are queued in the io_context. Destroy it on the io_context's thread,
/// outside of tasks; on another only once there is no work. Destroy connections and listeners first, as before any
/// executor, except those that handlers of the io_context hold, such as coroutines of Asio: these go with the handlers,
/// at the latest with the io_context, on that same thread.
class asio_host {
 public:
  /// Throws weft::error if there is no event driver.
  explicit asio_host(asio::io_context& context, const executor_options& options = {})
      : loop_(std::make_shared<detail::asio_loop>(context, options)) {
    asio::use_service<detail::asio_service>(context).add(loop_);
    loop_->kick();  // for work that other threads send before there is any here
  }
  asio_host(const asio_host&) = delete;
  asio_host& operator=(const asio_host&) = delete;
  ~asio_host() { loop_->finish(); }

  /// The executor of this host's tasks, for scopes, channels and run_on() elsewhere. Its run() is errc::wrong_thread.
  [[nodiscard]] weft::executor& executor() noexcept { return loop_->guest(); }

  /// Awaits anything that a task could (`peer.recv()`, `device.connect(...)`, a task) on the executor, and completes
  /// the token with the value: void(std::error_code, T), or void(std::error_code) if there is none. T is std::optional
  /// of the value if that has no default.
  ///
  ///     auto message = co_await host.async(peer.recv(), asio::use_awaitable);
  ///     host.async(peer.send(buffer), [](std::error_code failure) { ... });
  ///
  /// The handler runs on its associated executor, never inside this call; its state is in memory of its associated
  /// allocator. Its cancellation slot, on the io_context's thread, stops the operation, which then ends with
  /// asio::error::operation_aborted or with what happened first. An exception without an error code leaves
  /// io_context::run(), and the handler is destroyed uncalled. From any thread for a task; on the io_context's thread
  /// for operations of a connection.
  ///
  /// asio::use_awaitable and asio::use_future, also bound to a slot or an executor, are completed with an
  /// std::exception_ptr: they throw the weft::error with its message, or any other exception as it is. A
  /// std::error_code has no room for a message: with other tokens, spawn() or async(as_result(...)) keeps it.
  template <class Operation, class CompletionToken>
  auto async(Operation operation, CompletionToken&& token) {
    return detail::start_asio_operation(std::shared_ptr(loop_), std::move(operation), token);
  }

  /// Like async(), with the exception as it was thrown: void(std::exception_ptr, T), like asio::co_spawn. A stop is
  /// errc::canceled.
  template <class Operation, class CompletionToken>
  auto spawn(Operation work, CompletionToken&& token) {
    return detail::start_asio_call<std::exception_ptr>(std::shared_ptr(loop_), std::move(work), token);
  }

  /// Asks everything that has been started here so far to stop. Call on the io_context's thread.
  void request_stop() { loop_->request_stop(); }

 private:
  std::shared_ptr<detail::asio_loop> loop_;
};

/// The completion token with which a task of an asio_host awaits an operation of Asio:
///
///     std::size_t got = co_await socket.async_read_some(asio::buffer(bytes), weft::use_weft);
///
/// It yields the handler's arguments after the error_code (several: a tuple), and throws a failure as a weft::error. A
/// stop of the task cancels the operation through its cancellation slot, and the task resumes once the operation has
/// ended: errc::canceled. For objects of the host's io_context, on whose thread the task runs.
struct use_weft_t {};
inline constexpr use_weft_t use_weft;  ///< the token: `co_await socket.async_read_some(..., weft::use_weft)`

namespace detail {

template <class... Values>
class asio_wait;

/// The state that an Asio handler and its waiting task share. The second of the two to come destroys it.
template <class... Values>
class asio_rendezvous final : private remote_work {
 public:
  asio_rendezvous(executor_core& home, asio_wait<Values...>& waiter) noexcept : home_(home), waiter_(&waiter) {}

  /// Called once, on the handler's thread: with its arguments, or without if it is destroyed uncalled.
  void answer(std::optional<std::tuple<Values...>> values) noexcept {
    values_ = std::move(values);
    if (state_.exchange(state::answered, std::memory_order_acq_rel) == state::waiting) return home_.submit(*this);
    delete this;
  }
  /// On the executor: the waiter leaves before the answer.
  void forsake() noexcept {
    waiter_ = nullptr;
    state_.exchange(state::forsaken, std::memory_order_acq_rel);
  }
  [[nodiscard]] std::optional<std::tuple<Values...>>& values() noexcept { return values_; }
  [[nodiscard]] asio::cancellation_signal& cancellation() noexcept { return cancellation_; }

 private:
  void run_on_executor() noexcept override {
    if (waiter_ != nullptr) waiter_->arrived();
    delete this;
  }

  // waiting:  neither the handler nor the waiter is gone
  // answered: the handler has submitted this to the executor, which destroys it, waiter or not
  // forsaken: there is no waiter, and maybe no executor any more: a handler that comes now destroys it
  enum class state : std::uint8_t { waiting, answered, forsaken };
  std::atomic<state> state_{state::waiting};
  executor_core& home_;
  asio_wait<Values...>* waiter_;
  std::optional<std::tuple<Values...>> values_;
  asio::cancellation_signal cancellation_;
};

/// The handler that Asio gets for use_weft.
template <class... Values>
class asio_handler {
 public:
  using cancellation_slot_type = asio::cancellation_slot;

  explicit asio_handler(asio_rendezvous<Values...>& meeting) noexcept : meeting_(&meeting) {}
  asio_handler(asio_handler&& other) noexcept : meeting_(std::exchange(other.meeting_, nullptr)) {}
  asio_handler& operator=(asio_handler&&) = delete;
  ~asio_handler() {
    if (meeting_ != nullptr) meeting_->answer(std::nullopt);
  }
  [[nodiscard]] cancellation_slot_type get_cancellation_slot() const noexcept {
    return meeting_->cancellation().slot();
  }
  template <class... Given>
  void operator()(Given&&... values) {
    std::exchange(meeting_, nullptr)->answer(std::tuple<Values...>(std::forward<Given>(values)...));
  }

 private:
  asio_rendezvous<Values...>* meeting_;
};

/// The part of the awaiter that does not depend on the operation.
template <class... Values>
class asio_wait : public operation_base {
 public:
  void arrived() noexcept {
    values_ = std::move(meeting_->values());
    meeting_ = nullptr;
    finish();
  }
  [[nodiscard]] std::string describe() const override { return "an operation of Asio"; }

 protected:
  asio_wait() = default;
  asio_wait(asio_wait&& other) noexcept : operation_base(std::move(other)) {}
  ~asio_wait() { forsake(); }

  virtual void initiate(asio_handler<Values...> handler) = 0;
  std::optional<std::tuple<Values...>> values_;

 private:
  void begin() override {
    meeting_ = new asio_rendezvous<Values...>(home(), *this);
    try {
      initiate(asio_handler<Values...>(*meeting_));
    } catch (...) {
      forsake();
      throw;
    }
  }
  void cancel() noexcept override {
    meeting_->cancellation().emit(asio::cancellation_type::terminal | asio::cancellation_type::partial |
                                  asio::cancellation_type::total);
    const asio_loop* const loop = asio_loop::of(home());
    if (loop == nullptr || !loop->finishing()) return;
    forsake();  // its handler is in a queue that nobody serves any more
    finish();
  }
  void forsake() noexcept {
    if (meeting_ != nullptr) std::exchange(meeting_, nullptr)->forsake();
  }

  asio_rendezvous<Values...>* meeting_ = nullptr;  // null once either of the two has left
};

/// Makes the task's result of a handler's arguments: a leading error_code or exception_ptr is thrown.
template <class First, class... Rest>
auto asio_result(std::tuple<First, Rest...>&& values) {
  if constexpr (std::is_same_v<First, std::error_code>) {
    if (std::get<0>(values)) throw error(from_asio(std::get<0>(values)), "Asio operation failed");
  } else if constexpr (std::is_same_v<First, std::exception_ptr>) {
    if (std::get<0>(values)) std::rethrow_exception(std::get<0>(values));
  }
  if constexpr (!std::is_same_v<First, std::error_code> && !std::is_same_v<First, std::exception_ptr>) {
    if constexpr (sizeof...(Rest) == 0) {
      return std::get<0>(std::move(values));
    } else {
      return std::move(values);
    }
  } else if constexpr (sizeof...(Rest) == 1) {
    return std::get<1>(std::move(values));
  } else if constexpr (sizeof...(Rest) > 1) {
    return std::apply([](First&, Rest&... rest) { return std::tuple<Rest...>(std::move(rest)...); }, values);
  }
}
inline void asio_result(std::tuple<>&&) noexcept {}

template <class Initiation, class Arguments, class... Values>
class [[nodiscard]] asio_operation final : public asio_wait<Values...> {
 public:
  asio_operation(Initiation initiation, Arguments arguments)
      : initiation_(std::move(initiation)), arguments_(std::move(arguments)) {}
  asio_operation(asio_operation&& other) noexcept
      : asio_wait<Values...>(std::move(other)),
        initiation_(std::move(other.initiation_)),
        arguments_(std::move(other.arguments_)) {}

  auto await_resume() {
    if (!this->values_) throw error(errc::canceled, "Asio operation stopped");
    return asio_result(std::move(*this->values_));
  }

 private:
  void initiate(asio_handler<Values...> handler) override {
    std::apply([&](auto&... arguments) { std::move(initiation_)(std::move(handler), std::move(arguments)...); },
               arguments_);
  }

  Initiation initiation_;
  Arguments arguments_;
};

}  // namespace detail
}  // namespace weft

/// @cond
/// What Asio's initiating functions return for weft::use_weft.
template <class... Values>
class asio::async_result<weft::use_weft_t, void(Values...)> {
 public:
  template <class Initiation, class... Arguments>
  static auto initiate(Initiation&& initiation, weft::use_weft_t, Arguments&&... arguments) {
    using all = std::tuple<std::decay_t<Arguments>...>;
    return weft::detail::asio_operation<std::decay_t<Initiation>, all, std::decay_t<Values>...>(
        std::forward<Initiation>(initiation), all(std::forward<Arguments>(arguments)...));
  }
};
/// @endcond
