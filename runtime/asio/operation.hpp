// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/asio/failures.hpp>
#include <weft/runtime/asio/library.hpp>
#include <weft/runtime/asio/loop.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/remote_work.hpp>
#include <weft/runtime/executor.hpp>

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace weft::detail {

template <class... Values>
class asio_wait;

/// The state that an Asio handler and its waiting task share. It destroys itself once both have left.
template <class... Values>
class asio_rendezvous final : private remote_work {
 public:
  asio_rendezvous(executor_core& home, asio_wait<Values...>& waiter) noexcept : home_(home), waiter_(&waiter) {}

  /// Takes the handler's arguments, or nothing if it is destroyed uncalled. Called once, on the handler's thread.
  void answer(std::optional<std::tuple<Values...>> values) noexcept {
    values_ = std::move(values);
    if (state_.exchange(state::answered, std::memory_order_acq_rel) == state::waiting) return home_.submit(*this);
    delete this;
  }
  /// Lets the waiter leave before the answer has reached it. Called on the executor.
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
  // answered: the handler has submitted the rendezvous to the executor, which destroys it, waiter or not
  // forsaken: the waiter has left, and the executor may be gone: a handler that answers now destroys the rendezvous
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
    std::optional<std::tuple<Values...>> all(std::in_place, std::forward<Given>(values)...);  // may throw
    std::exchange(meeting_, nullptr)->answer(std::move(all));
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
    forsake();  // the handler is in the io_context's queue, which nobody serves any more
    finish();
  }
  void forsake() noexcept {
    if (meeting_ != nullptr) std::exchange(meeting_, nullptr)->forsake();
  }

  asio_rendezvous<Values...>* meeting_ = nullptr;  // null before begin(), and after arrived() or forsake()
};

/// Turns a handler's arguments into the task's result. Throws a leading error_code that reports a failure, and a
/// leading exception_ptr that is not null.
template <class First, class... Rest>
auto asio_result(std::tuple<First, Rest...>&& values) {
  if constexpr (std::is_same_v<First, asio_code>) {
    if (std::get<0>(values)) throw error(from_asio(std::get<0>(values)), "Asio operation failed");
  } else if constexpr (std::is_same_v<First, std::exception_ptr>) {
    if (std::get<0>(values)) std::rethrow_exception(std::get<0>(values));
  }
  if constexpr (!std::is_same_v<First, asio_code> && !std::is_same_v<First, std::exception_ptr>) {
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

}  // namespace weft::detail
