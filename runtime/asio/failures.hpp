// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>

#include <asio/async_result.hpp>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/bind_executor.hpp>
#include <asio/error.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>

#include <exception>
#include <new>
#include <system_error>

namespace weft::detail {

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

}  // namespace weft::detail
