// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/listener.hpp>
#include <weft/net/options.hpp>
#include <weft/net/stream.hpp>
#include <weft/runtime/task.hpp>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft::net {

class device;
class tcp_acceptor;

/// A peer that wants a stream: accept the request, or destroy it, which turns the peer away. Move-only.
class stream_request {
 public:
  stream_request(stream_request&&) noexcept;
  stream_request& operator=(stream_request&&) noexcept;
  ~stream_request();

  /// "10.0.0.9:40312"; empty once the request was answered.
  [[nodiscard]] std::string_view peer() const noexcept;

  /// Sets the stream up and yields it, on the executor that awaits the task and owns the stream from then on. Plain TCP
  /// uses only dead_peer_after and close_timeout of the options. Call it once. Throws weft::error. The device must
  /// outlive the stream.
  task<stream> accept(connection_options options = stream_options());

 private:
  friend class stream_listener;
  struct plain;
  explicit stream_request(connection_request request) noexcept;
  explicit stream_request(std::unique_ptr<plain> peer) noexcept;

  static task<stream> accept_plain(std::unique_ptr<plain> from, connection_options options);

  std::optional<connection_request> request_;
  std::unique_ptr<plain> plain_;
};

/// Listens for streams over a device or plain TCP, by the scheme of its address. Move-only. It belongs to the executor
/// on which it was made, and stops listening when destroyed. If the process has no descriptors left, new peers are
/// turned away.
class stream_listener {
 public:
  /// Listens on "HOST:PORT" or "SCHEME://HOST:PORT" as stream::connect() understands it; port 0 lets the system choose.
  /// Plain TCP uses only the traffic class and max_connections of the options. Throws weft::error. The device must
  /// outlive the listener.
  static task<stream_listener> listen(device& through, std::string address, listener_options options = {});
  stream_listener(stream_listener&&) noexcept;
  stream_listener& operator=(stream_listener&&) noexcept;
  ~stream_listener();

  /// The address for stream::connect(): "10.0.0.7:7471", or "tcp://10.0.0.7:7471" over plain TCP.
  [[nodiscard]] std::string_view address() const noexcept { return address_; }
  /// Waits for the next peer; one task at a time. Empty after close().
  task<std::optional<stream_request>> next();
  /// Waits for the next peer whose stream is set up, as listener::accept() does. Over plain TCP the kernel sets streams
  /// up, and only one task may wait at a time. Empty after close().
  task<std::optional<stream>> accept(connection_options options = stream_options());
  /// Stops listening: next() and accept() yield nothing more.
  void close() noexcept;

 private:
  stream_listener(mr::pool& pool, std::string address) noexcept;
  static task<std::optional<stream_request>> next_plain(std::shared_ptr<tcp_acceptor> source, mr::pool& pool);
  static task<std::optional<stream_request>> next_over(task<std::optional<connection_request>> next);
  static task<std::optional<stream>> accept_over(task<std::optional<connection>> next);
  static task<std::optional<stream>> accept_next_plain(std::shared_ptr<tcp_acceptor> source, mr::pool& pool,
                                                       connection_options options);

  mr::pool* pool_;
  std::string address_;
  std::optional<listener> over_;
  std::shared_ptr<tcp_acceptor> plain_;
};

}  // namespace weft::net
