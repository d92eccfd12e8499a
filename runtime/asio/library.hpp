// SPDX-License-Identifier: Apache-2.0
#pragma once

// Chooses the Asio that a program uses with weft: the one that it has included before this header; if it has included
// neither or both, standalone Asio where that is installed. Defining WEFT_BOOST_ASIO as 1 or 0 overrides the choice.
#if !defined(WEFT_BOOST_ASIO)
#if defined(BOOST_ASIO_DETAIL_CONFIG_HPP) && !defined(ASIO_DETAIL_CONFIG_HPP)
#define WEFT_BOOST_ASIO 1
#elif __has_include(<asio.hpp>)
#define WEFT_BOOST_ASIO 0
#else
#define WEFT_BOOST_ASIO 1
#endif
#endif

#if WEFT_BOOST_ASIO
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/socket_base.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/system/error_code.hpp>
#include <boost/system/system_error.hpp>
#else
#include <asio/any_io_executor.hpp>
#include <asio/associated_allocator.hpp>
#include <asio/associated_cancellation_slot.hpp>
#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/bind_executor.hpp>
#include <asio/buffer.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/detached.hpp>
#include <asio/dispatch.hpp>
#include <asio/error.hpp>
#include <asio/execution_context.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/socket_base.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>
#endif

#include <weft/runtime/asio/one_library.hpp>

#include <system_error>

namespace weft {

#if WEFT_BOOST_ASIO
namespace asio = boost::asio;
#else
namespace asio = ::asio;
#endif

namespace detail {

#if WEFT_BOOST_ASIO
/// The type of the codes that handlers get.
using asio_code = boost::system::error_code;
const bool has_one_asio = (require_one_asio("Boost.Asio"), true);

/// Converts a code for a handler. Codes of the system become Boost's own, because Boost's users compare with these.
inline asio_code as_asio_code(const std::error_code& code) noexcept {
  if (code.category() == std::system_category()) return {code.value(), boost::system::system_category()};
  if (code.category() == std::generic_category()) return {code.value(), boost::system::generic_category()};
  const asio_code eof = asio::error::eof;
  return code == static_cast<std::error_code>(eof) ? eof : asio_code(code);
}
#else
/// The type of the codes that handlers get.
using asio_code = std::error_code;
const bool has_one_asio = (require_one_asio("Asio"), true);

/// The code for a handler, unchanged.
inline asio_code as_asio_code(const std::error_code& code) noexcept { return code; }
#endif

/// Converts a handler's code to a std::error_code.
inline std::error_code as_std_code(const asio_code& code) noexcept { return code; }

}  // namespace detail
}  // namespace weft
