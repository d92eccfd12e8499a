// SPDX-License-Identifier: Apache-2.0

/// @file
/// Makes net::stream a stream of Asio's. The only header of net that needs Asio.
///
///     auto peer = co_await host.async(net::stream::connect(device, "10.0.0.7:7471"), asio::use_awaitable);
///     co_await asio::async_write(peer, asio::buffer(request), asio::use_awaitable);
///     co_await asio::async_read_until(peer, asio::dynamic_buffer(answer), '\n', asio::use_awaitable);
///     asio::ssl::stream<net::stream> secure(std::move(peer), context);
///
/// A stream belongs to the executor of an asio_host: use it on the thread that runs the host's io_context. Handlers get
/// asio::error::eof at the end of the stream, asio::error::operation_aborted after a cancellation or a close() of this
/// end, and asio::error::connection_reset if the peer died; other errors are weft's.

#pragma once

#include <weft/net/stream.hpp>
#include <weft/runtime/asio.hpp>

#include <memory>
#include <system_error>
#include <type_traits>
#include <utility>

namespace weft::net {

/// The executor of the io_context that drives a stream: stream::get_executor().
class stream::executor_type : public asio::io_context::executor_type {
 public:
  /// The executor `of` an io_context.
  explicit(false) executor_type(const asio::io_context::executor_type& of) noexcept
      : asio::io_context::executor_type(of) {}
};

namespace detail {

[[nodiscard]] inline std::shared_ptr<weft::detail::asio_loop> asio_loop_of(const executor_core& home) {
  auto* const loop = weft::detail::asio_loop::of(home);
  if (loop == nullptr) throw error(errc::not_supported, "use a stream with Asio: no asio_host drives its executor");
  return loop->shared_from_this();
}

/// Replaces errc::closed and errc::peer_vanished by Asio's codes; leaves any other failure as it is.
[[nodiscard]] inline error with_asio_code(const error& why) {
  if (why.code() == errc::closed) return why.with_code(weft::detail::as_std_code(asio::error::operation_aborted));
  if (why.code() == errc::peer_vanished) return why.with_code(weft::detail::as_std_code(asio::error::connection_reset));
  return why;
}

/// A stream's task whose failures have Asio's codes. With `expects_bytes`, a result of no bytes is asio::error::eof.
/// The result is translated where it is taken, because a coroutine around the task would cost more than all else here.
template <class T>
class task_for_asio : public task<T> {
 public:
  explicit task_for_asio(task<T> operation, bool expects_bytes = false) noexcept
      : task<T>(std::move(operation)), expects_bytes_(expects_bytes) {}

  T take_for_asio(weft::detail::root_of<T>& ended) const {
    try {
      if constexpr (std::is_void_v<T>) {
        return ended.take();
      } else {
        const T bytes = ended.take();
        if (bytes == 0 && expects_bytes_) throw std::system_error(weft::detail::as_std_code(asio::error::eof));
        return bytes;
      }
    } catch (const error& why) {
      throw with_asio_code(why);
    }
  }

 private:
  bool expects_bytes_;
};

template <class Ranges, class Buffer, class BufferSequence>
[[nodiscard]] Ranges ranges_of(const BufferSequence& buffers) {
  Ranges found;
  const auto end = asio::buffer_sequence_end(buffers);
  for (auto each = asio::buffer_sequence_begin(buffers); each != end; ++each) {
    const Buffer buffer(*each);
    using pointer = decltype(found.all().data()->data());
    if (!found.add({static_cast<pointer>(buffer.data()), buffer.size()})) break;
  }
  return found;
}

}  // namespace detail

inline stream::executor_type stream::get_executor() const {
  return detail::asio_loop_of(home())->context().get_executor();
}

template <class MutableBufferSequence, class ReadToken>
auto stream::async_read_some(const MutableBufferSequence& buffers, ReadToken&& token) {
  const auto where = detail::ranges_of<writable_ranges, asio::mutable_buffer>(buffers);
  return weft::detail::start_asio_operation(detail::asio_loop_of(home()),
                                            detail::task_for_asio(read_some(where), where.bytes() != 0), token);
}

template <class ConstBufferSequence, class WriteToken>
auto stream::async_write_some(const ConstBufferSequence& buffers, WriteToken&& token) {
  const auto what = detail::ranges_of<readable_ranges, asio::const_buffer>(buffers);
  return weft::detail::start_asio_operation(detail::asio_loop_of(home()), detail::task_for_asio(write_some(what)),
                                            token);
}

template <class ShutdownToken>
auto stream::async_shutdown_send(ShutdownToken&& token) {
  return weft::detail::start_asio_operation(detail::asio_loop_of(home()), detail::task_for_asio(shutdown_send()),
                                            token);
}

template <class ShutdownType>
void stream::shutdown(ShutdownType what) {
  if (what != asio::socket_base::shutdown_receive) async_shutdown_send(asio::detached);
}

}  // namespace weft::net
