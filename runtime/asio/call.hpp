// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/asio/failures.hpp>
#include <weft/runtime/asio/library.hpp>
#include <weft/runtime/asio/loop.hpp>
#include <weft/runtime/core/awaitable.hpp>
#include <weft/runtime/core/frame_allocator.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/executor.hpp>

#include <concepts>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>

namespace weft::detail {

/// The type of a handler's value: T, or std::optional<T> if there is no default T to pass along with a failure.
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

/// The allocator of T for a handler with this associated allocator.
template <class Allocator, class T>
using asio_allocator = std::conditional_t<std::is_same_v<Allocator, std::allocator<void>>, frame_memory<T>,
                                          typename std::allocator_traits<Allocator>::template rebind_alloc<T>>;

/// An operation as a member. Some operations are bases of others; a member is known to be of its exact class, so clang
/// does not warn when it is destroyed.
template <class Operation>
struct asio_held {
  explicit asio_held(Operation&& operation) : what(std::move(operation)) {}
  // The sized delete is its match. NOLINTNEXTLINE(misc-new-delete-overloads)
  static void* operator new(std::size_t bytes) { return allocate_frame(bytes); }
  static void operator delete(void* memory, std::size_t bytes) noexcept { free_frame(memory, bytes); }

  Operation what;
};
/// An operation that is allocated by itself, in the recycled memory of frames.
template <class Operation>
using asio_parked = std::unique_ptr<asio_held<Operation>>;
/// Whether a token moves the operation several times, as Asio's coroutines do.
template <class Token>
inline constexpr bool asio_moves_often = false;
template <class Token, class Slot>
inline constexpr bool asio_moves_often<asio::cancellation_slot_binder<Token, Slot>> = asio_moves_often<Token>;
template <class Token, class Executor>
inline constexpr bool asio_moves_often<asio::executor_binder<Token, Executor>> = asio_moves_often<Token>;
#if defined(ASIO_HAS_CO_AWAIT) || defined(BOOST_ASIO_HAS_CO_AWAIT)
template <class Executor>
inline constexpr bool asio_moves_often<asio::use_awaitable_t<Executor>> = true;
#endif

/// The type of the operation that a call is given, parked or not, and the type of the member that keeps it.
template <class Given>
struct asio_given {
  using operation = Given;
  using member = std::optional<asio_held<Given>>;
  static member keep(Given&& operation) { return member(std::in_place, std::move(operation)); }
};
template <class Operation>
struct asio_given<asio_parked<Operation>> {
  using operation = Operation;
  using member = asio_parked<Operation>;
  static member keep(member&& parked) noexcept { return std::move(parked); }
};

/// Whether a handler's associated executor is that of an io_context, so on its thread the handler may be called
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

template <class Failure, class Handler, class Given>
class asio_call final : public asio_call_base {
  using awaited = typename asio_given<Given>::operation;
  using value = await_result<awaited>;
  // An operation that derives from task<T> may have a member take_for_asio(root_of<T>&), which yields the result or
  // throws.
  static constexpr bool is_task = std::derived_from<awaited, task<value>>;
  using handler_executor = asio::associated_executor_t<Handler, asio::io_context::executor_type>;
  using allocator = asio_allocator<asio::associated_allocator_t<Handler>, asio_call>;
  using allocator_traits = std::allocator_traits<allocator>;

 public:
  /// Makes a call in memory of the handler's allocator. Moves handler and operation once each, because moves of
  /// operations and of Asio's coroutines are not cheap.
  template <class GivenHandler>
  static asio_call& make(std::shared_ptr<asio_loop> loop, GivenHandler&& handler, Given&& operation) {
    allocator memory(asio::get_associated_allocator(handler));
    asio_call* const place = allocator_traits::allocate(memory, 1);
    try {
      return *::new (static_cast<void*>(place))
          asio_call(std::move(loop), std::forward<GivenHandler>(handler), std::move(operation));
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
  template <class GivenHandler>
  asio_call(std::shared_ptr<asio_loop>&& loop, GivenHandler&& handler, Given&& operation)
      : asio_call_base(std::move(loop)),
        handler_(std::forward<GivenHandler>(handler)),
        operation_(asio_given<Given>::keep(std::move(operation))) {
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

  // Starts the operation itself if it is a task, else a task that awaits it.
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
  // Takes the task's result. An operation with take_for_asio() is asked for it after a failure, too.
  void take_result() noexcept {
    constexpr bool translates = requires(awaited& what) { what.take_for_asio(*root_); };
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
  asio_code code() {
    if (!failure_) return {};
    try {
      std::rethrow_exception(std::exchange(failure_, nullptr));
    } catch (const std::system_error& known) {
      return as_asio_code(to_asio(known.code()));
    } catch (const std::bad_alloc&) {
      return as_asio_code(std::make_error_code(std::errc::not_enough_memory));
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
      const asio_code failure = code();
      if (failure_) {
        const std::exception_ptr unknown = failure_;
        asio::io_context& context = loop().context();
        abandon();
        if (!later) std::rethrow_exception(unknown);
        asio::post(context, [unknown] { std::rethrow_exception(unknown); });
        return;
      }
      deliver(later, asio_code(failure));
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
  // Calls the handler as asio::dispatch() would, at once on the thread of the handler's io_context; if `later`, as
  // asio::post() would. What the handler throws leaves io_context::run().
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
  // Empty: the handler's executor is the loop's io_context, which has work until the call has completed.
  std::optional<asio::executor_work_guard<handler_executor>> work_;
  Handler handler_;
  typename asio_given<Given>::member operation_;
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
template <class Failure, class Given, class CompletionToken>
auto start_asio_call(std::shared_ptr<asio_loop>&& home, Given&& operation, CompletionToken& token) {
  static_assert(!std::is_reference_v<Given>);
  using signature = typename asio_signature<Failure, await_result<typename asio_given<Given>::operation>>::type;
  return asio::async_initiate<CompletionToken, signature>(
      [](auto&& handler, auto&& loop, auto&& what) {
        using handler_type = std::decay_t<decltype(handler)>;
        asio::io_context& context = loop->context();
        auto& call = asio_call<Failure, handler_type, Given>::make(std::forward<decltype(loop)>(loop),
                                                                   std::forward<decltype(handler)>(handler),
                                                                   std::forward<decltype(what)>(what));
        if (context.get_executor().running_in_this_thread()) return call.start();
        asio::post(context, asio_departure(call));
      },
      token, std::move(home), std::forward<Given>(operation));
}

/// start_asio_call() with the failure that suits the token: an error_code, or the exception if the token throws.
template <class Operation, class CompletionToken>
auto start_asio_operation(std::shared_ptr<asio_loop>&& home, Operation&& operation, CompletionToken& token) {
  using failure = std::conditional_t<asio_throws<std::decay_t<CompletionToken>>, asio_thrown, asio_code>;
  constexpr std::size_t cheap_to_move = 64;
  if constexpr (asio_moves_often<std::decay_t<CompletionToken>> && sizeof(Operation) > cheap_to_move) {
    return start_asio_call<failure>(std::move(home),
                                    std::make_unique<asio_held<Operation>>(std::forward<Operation>(operation)), token);
  } else {
    return start_asio_call<failure>(std::move(home), std::forward<Operation>(operation), token);
  }
}

}  // namespace weft::detail
