// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/connection.hpp>
#include <weft/net/options.hpp>
#include <weft/net/stream/byte_ranges.hpp>
#include <weft/net/stream/stream_ref.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace weft::net {

class device;

/// Options of a connection that carries a stream: its messages have room for a TLS record with its header.
[[nodiscard]] inline connection_options stream_options() noexcept { return {.receive_size = 17 * 1024}; }

/// A close that is under way: await it or not.
class closing {
 public:
  /// Made by stream::close().
  explicit closing(stream_ref core) noexcept : core_(std::move(core)) {}
  /// Waits until the stream has ended. Throws errc::closed for a stream that was not connected.
  event::wait_operation operator co_await() const;

 private:
  stream_ref core_;
};

/// An ordered stream of bytes, like a TCP connection's: over a connection, or plain TCP. Move-only.
///
/// Over a connection the bytes travel as its messages, so its credits hold back a writer whose peer does not read, and
/// a peer can make this end hold at most receive_depth messages. An empty message is the end of one direction.
///
/// At most one read and one write at a time, else errc::busy. All calls on the executor that owns the stream; tasks end
/// with errc::wrong_thread elsewhere. The executor must outlive the stream, whose socket and timers end there, wherever
/// the stream is destroyed. Calls that are neither tasks nor awaited may also come from handlers of an asio::io_context
/// that drives that executor; <weft/net/asio.hpp> makes this class an AsyncReadStream and AsyncWriteStream of Asio's.
class stream {
 public:
  /// A stream that is not connected, like one that was moved from: operations end with errc::closed when they are
  /// awaited, peer() is empty, and close(), abort() and cancel() do nothing.
  stream() noexcept = default;
  /// Makes a stream over a connection, which must carry nothing else. Throws errc::closed for a connection that was
  /// moved from. To a peer that is not weft, and whose receive_size is not known, it sends messages of at most 4096
  /// bytes.
  explicit stream(connection over);
  stream(stream&&) noexcept = default;
  stream& operator=(stream&& other) noexcept;
  /// Closes the stream as close() does, but nobody can wait for it. If an exception destroys the stream, aborts it,
  /// unless it is closing. Call it on the executor's thread, or on any thread while no operation is in progress: the
  /// executor then begins the same orderly close in its next turn.
  ~stream();

  /// Connects to "HOST:PORT" through the device, to "SCHEME://HOST:PORT" through it if SCHEME is the name of one of its
  /// transports ("iwarp", "verbs"), or to "tcp://HOST:PORT" over plain TCP. A device of several fabrics takes the first
  /// that reaches the peer, whichever of them SCHEME names. Plain TCP uses source, traffic_class, set_up_timeout,
  /// dead_peer_after and close_timeout of the options. errc::not_supported for another scheme, else as
  /// device::connect(). The device must outlive the stream, which uses its pool.
  static task<stream> connect(device& through, std::string address, connection_options options = stream_options());

  /// Reads some received bytes, at most as many as fit; waits if there are none. Yields their number: 0 only at the end
  /// of the stream, or if `where` is empty. The peer's shutdown_send() or close ends the stream. errc::peer_vanished if
  /// the peer died; over plain TCP, the stream of a process that died may look closed instead. Stopping loses no byte.
  task<std::size_t> read_some(std::span<std::byte> where);
  /// Reads into several pieces of memory, filled in order: at most the first 8 that are not empty.
  task<std::size_t> read_some(std::span<const std::span<std::byte>> where);
  /// Reads into several pieces of memory, whose list the operation keeps.
  task<std::size_t> read_some(writable_ranges where);
  /// Like read_some(), without a copy; empty at the end of the stream. While it waits it holds no memory of its own.
  task<received_bytes> read_bytes();
  /// Fills all of `where`. errc::peer_closed if the stream ends before; a stop may lose bytes that it has read.
  task<> read(std::span<std::byte> where);

  /// Writes some of the bytes, at least one unless `what` is empty, and yields how many. Waits while the peer has no
  /// room, and until the bytes may be reused. A stop before any byte was sent is errc::canceled; a later stop yields
  /// how many bytes will arrive. errc::closed after shutdown_send(); errc::message_too_large if the peer's receive_size
  /// is 0.
  task<std::size_t> write_some(std::span<const std::byte> what);
  /// Writes from several pieces of memory, in order: at most from the first 8 that are not empty.
  task<std::size_t> write_some(std::span<const std::span<const std::byte>> what);
  /// Writes from several pieces of memory, whose list the operation keeps.
  task<std::size_t> write_some(readable_ranges what);
  /// Writes some bytes of registered memory without a copy. The memory is borrowed: stopping the write while the
  /// transport uses it aborts the connection, and is errc::canceled whatever was sent before. Over plain TCP it copies,
  /// and a stop is as above.
  task<std::size_t> write_some(mr::slice what);
  /// Writes all bytes. If it fails or is stopped, it is not known how many have arrived.
  task<> write(std::span<const std::byte> what);
  /// Writes all of a buffer, over a connection without a copy if it fits into one message to the peer.
  task<> write(mr::buffer&& what);

  /// Ends this direction: the peer reads the end of the stream after all that was written. The stream can still be
  /// read. Does nothing the second time; errc::busy during a write.
  task<> shutdown_send();

  /// Begins an orderly close, in the background: written bytes arrive, operations in progress end with errc::closed,
  /// unread bytes are dropped. `co_await stream.close()` waits until the close is done; a stop ends only the wait.
  /// executor::run() does not return before it is done. Over plain TCP it is done once the peer's machine has all that
  /// was written and, if bytes were dropped, the peer has stopped sending; after connection_options::close_timeout
  /// without progress the wait ends, and the kernel keeps sending the rest.
  closing close() noexcept;
  /// close() in the form that Asio's functions call; there is never an error.
  template <class ErrorCode>
  void close(ErrorCode& none) noexcept {
    close();
    none.clear();
  }
  /// Ends the stream now. The peer sees that it was not an orderly close.
  void abort() noexcept;
  /// Stops the operations in progress with errc::canceled; a write_some() that has sent bytes yields their number.
  void cancel() noexcept;
  /// cancel() in the form that Asio's functions call; there is never an error.
  template <class ErrorCode>
  void cancel(ErrorCode& none) noexcept {
    cancel();
    none.clear();
  }

  /// Whether the stream is connected, and this end has neither closed nor aborted it.
  [[nodiscard]] bool is_open() const noexcept;
  /// The peer's address: "10.0.0.7:7471".
  [[nodiscard]] std::string_view peer() const noexcept;

  // Members that Asio's requirements on types ask for, defined in <weft/net/asio.hpp>.

  class executor_type;
  using lowest_layer_type = stream;  ///< itself: there is no layer below
  /// The executor of the io_context that drives the stream; errc::not_supported if none does, errc::closed if the
  /// stream is not connected.
  [[nodiscard]] executor_type get_executor() const;
  /// Itself.
  [[nodiscard]] lowest_layer_type& lowest_layer() noexcept { return *this; }
  /// Itself.
  [[nodiscard]] const lowest_layer_type& lowest_layer() const noexcept { return *this; }
  /// read_some() with a completion token: void(std::error_code, std::size_t).
  template <class MutableBufferSequence, class ReadToken>
  auto async_read_some(const MutableBufferSequence& buffers, ReadToken&& token);
  /// write_some() with a completion token: void(std::error_code, std::size_t).
  template <class ConstBufferSequence, class WriteToken>
  auto async_write_some(const ConstBufferSequence& buffers, WriteToken&& token);
  /// shutdown_send() with a completion token: void(std::error_code).
  template <class ShutdownToken>
  auto async_shutdown_send(ShutdownToken&& token);
  /// asio::socket_base::shutdown_send and shutdown_both start shutdown_send() in the background, which does nothing
  /// during a write. shutdown_receive does nothing: the peer may send until close().
  template <class ShutdownType>
  void shutdown(ShutdownType what);
  /// shutdown() in the form that Asio's functions call; clears `none`.
  template <class ShutdownType, class ErrorCode>
  void shutdown(ShutdownType what, ErrorCode& none) {
    shutdown(what);
    none.clear();
  }

 private:
  friend class stream_request;
  explicit stream(stream_ref core) noexcept : core_(std::move(core)) {}
  [[nodiscard]] stream_ref checked() const;
  [[nodiscard]] executor_core& home() const;
  void drop() noexcept;

  weft::detail::sole_handle<stream_ref, "a stream"> core_;
};

}  // namespace weft::net
