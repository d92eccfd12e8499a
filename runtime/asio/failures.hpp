// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/asio/library.hpp>
#include <weft/runtime/error.hpp>

#include <exception>
#include <new>
#include <system_error>

namespace weft::detail {

/// Converts a code to the one that Asio's users compare with, or back: errc::canceled is
/// asio::error::operation_aborted in Asio.
inline std::error_code to_asio(const std::error_code& code) noexcept {
  return code == make_error_code(errc::canceled) ? as_std_code(asio::error::operation_aborted) : code;
}
inline std::error_code from_asio(const asio_code& code) noexcept {
  return code == asio::error::operation_aborted ? make_error_code(errc::canceled) : as_std_code(code);
}

#if WEFT_BOOST_ASIO
/// The exception that Boost.Asio's users catch, with the same message.
inline std::exception_ptr with_asio_code(const std::system_error& known) {
  return std::make_exception_ptr(boost::system::system_error(as_asio_code(to_asio(known.code())), known.what()));
}
inline std::exception_ptr with_asio_code(const error& known) {
  return with_asio_code(static_cast<const std::system_error&>(known));
}
#else
/// `known`, the exception being handled, with the code that Asio's users expect.
inline std::exception_ptr with_asio_code(const error& known) {
  const std::error_code code = to_asio(known.code());
  return code == known.code() ? std::current_exception() : std::make_exception_ptr(known.with_code(code));
}
inline std::exception_ptr with_asio_code(const std::system_error&) { return std::current_exception(); }
#endif

/// The failure with its message, and with the code that Asio's users expect. Null, and an exception that has no code,
/// stay as they are. The result is a std::bad_alloc if memory is short.
inline std::exception_ptr to_asio(std::exception_ptr failure) noexcept {
  if (!failure) return failure;
  try {
    try {
      std::rethrow_exception(failure);
    } catch (const error& known) {
      return with_asio_code(known);
    } catch (const std::system_error& known) {
      return with_asio_code(known);
    }
  } catch (const std::bad_alloc&) {
    return std::current_exception();
  } catch (...) {
    return failure;
  }
}

/// The failure type for tokens that throw: start_asio_call() completes them with the exception_ptr of to_asio().
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
#if defined(ASIO_HAS_CO_AWAIT) || defined(BOOST_ASIO_HAS_CO_AWAIT)
template <class Executor>
inline constexpr bool asio_throws<asio::use_awaitable_t<Executor>> = true;
#endif

}  // namespace weft::detail
