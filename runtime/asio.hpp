// SPDX-License-Identifier: Apache-2.0

/// @file
/// Integrates weft into a program that is built on Asio (standalone, 1.22 or newer) or Boost.Asio (1.81 or newer). No
/// other header of the runtime needs either library. weft uses the one that the program has included before (see
/// asio/library.hpp); it is called `asio::` below. With Boost.Asio a handler gets a boost::system::error_code instead
/// of a std::error_code, and async() throws a boost::system::system_error instead of a weft::error, with the same
/// message.

#pragma once

#include <weft/runtime/asio/call.hpp>
#include <weft/runtime/asio/library.hpp>
#include <weft/runtime/asio/loop.hpp>
#include <weft/runtime/asio/operation.hpp>
#include <weft/runtime/executor.hpp>

#include <exception>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

namespace weft {

/// An executor in an asio::io_context, without a thread of its own: the thread that runs the io_context serves its
/// tasks and connections, and both sleep in one place.
///
///     asio::io_context io;
///     weft::asio_host host(io);
///     host.spawn(serve(device), asio::detached);
///     io.run();
///
/// One thread must run the io_context, always the same. For several threads, use several io_contexts, each with a host.
/// Tasks, pending operations and open connections are work: io_context::run() returns only after the last of them.
/// While the executor spins (executor_options::policy), the io_context polls.
///
/// Destroying the host, or the io_context before it, asks everything that has not ended to stop, and waits for its end,
/// and for connections that are closing; the handlers are queued as by asio::post(), and an io_context that is being
/// destroyed destroys them uncalled. Destroy the host on the io_context's thread, outside of tasks; on another thread
/// only if there is no work left. Destroy connections and listeners first, as before any executor, except those that
/// handlers of the io_context hold (Asio's coroutines, for example): these are destroyed with the handlers, at the
/// latest with the io_context, on that same thread.
class asio_host {
 public:
  /// Adds an executor to `context`. Throws weft::error if no event driver can be opened; errc::not_supported with a
  /// simulated one.
  explicit asio_host(asio::io_context& context, const executor_options& options = {})
      : loop_(std::make_shared<detail::asio_loop>(context, options)) {
    asio::use_service<detail::asio_service>(context).add(loop_);
    loop_->kick();  // so that the executor hears of work from other threads even before any is started here
  }
  asio_host(const asio_host&) = delete;
  asio_host& operator=(const asio_host&) = delete;
  ~asio_host() { loop_->finish(); }

  /// The executor of this host's tasks, for scopes, channels and run_on() elsewhere. Its run() throws
  /// errc::wrong_thread.
  [[nodiscard]] weft::executor& executor() noexcept { return loop_->guest(); }

  /// Awaits anything that a task could (`peer.recv()`, `device.connect(...)`, a task) on the executor, and completes
  /// the token with the value: void(std::error_code, T), or void(std::error_code) if there is none. T is std::optional
  /// of the value if its type has no default constructor.
  ///
  ///     auto message = co_await host.async(peer.recv(), asio::use_awaitable);
  ///     host.async(peer.send(buffer), [](std::error_code failure) { ... });
  ///
  /// The handler runs on its associated executor, never inside this call; its state is in memory of its associated
  /// allocator. A signal to its cancellation slot, on the io_context's thread, stops the operation, which then ends
  /// with asio::error::operation_aborted or with what happened first. An exception that has no error code, other than
  /// std::bad_alloc, propagates from io_context::run(), and the handler is destroyed uncalled, unless the token is one
  /// of those below. The handler of a call that begins while the host is being destroyed is destroyed uncalled, too.
  /// Call from any thread for a task; on the io_context's thread for an operation of a connection.
  ///
  /// asio::use_awaitable and asio::use_future, also bound to a slot or an executor, are completed with an
  /// std::exception_ptr: they throw the weft::error with its message, or any other exception as it is. A
  /// std::error_code has no room for a message: with other tokens, spawn() or async(as_result(...)) keeps it.
  template <class Operation, class CompletionToken>
  auto async(Operation operation, CompletionToken&& token) {
    return detail::start_asio_operation(std::shared_ptr(loop_), std::move(operation), token);
  }

  /// Like async(), but completes the token with the exception as it was thrown: void(std::exception_ptr, T), as
  /// asio::co_spawn does. A stop is errc::canceled.
  template <class Operation, class CompletionToken>
  auto spawn(Operation work, CompletionToken&& token) {
    return detail::start_asio_call<std::exception_ptr>(std::shared_ptr(loop_), std::move(work), token);
  }

  /// Asks everything that async() and spawn() have started so far to stop. Call on the io_context's thread.
  void request_stop() { loop_->request_stop(); }

 private:
  std::shared_ptr<detail::asio_loop> loop_;
};

/// The completion token with which a task of an asio_host awaits an operation of Asio:
///
///     std::size_t got = co_await socket.async_read_some(asio::buffer(bytes), weft::use_weft);
///
/// It yields the handler's arguments after the error_code (several: a tuple), and throws the error_code of a failure as
/// a weft::error; the exception of a handler that gets an exception_ptr is thrown as it is. A stop of the task cancels
/// the operation through its cancellation slot. The task resumes when the operation has ended, with errc::canceled or
/// with what happened first; while the host is being destroyed, it resumes at once with errc::canceled, so the
/// operation may still use its buffers. For objects of the host's io_context, on whose thread the task runs.
struct use_weft_t {};
inline constexpr use_weft_t use_weft;  ///< the token: `co_await socket.async_read_some(..., weft::use_weft)`

}  // namespace weft

/// @cond
/// Makes Asio's initiating functions return an awaitable operation for weft::use_weft.
template <class... Values>
class weft::asio::async_result<weft::use_weft_t, void(Values...)> {
 public:
  template <class Initiation, class... Arguments>
  static auto initiate(Initiation&& initiation, weft::use_weft_t, Arguments&&... arguments) {
    using all = std::tuple<std::decay_t<Arguments>...>;
    return weft::detail::asio_operation<std::decay_t<Initiation>, all, std::decay_t<Values>...>(
        std::forward<Initiation>(initiation), all(std::forward<Arguments>(arguments)...));
  }
};
/// @endcond
