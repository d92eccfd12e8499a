// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/stream_listener.hpp>
#include <weft/runtime/metrics.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace weft::net {

class device;

/// How metrics are served.
struct metrics_server_options {
  std::size_t max_connections = 16;  ///< clients at a time; more are turned away. 0: no limit
  /// The limit for a request to arrive, and again for the client to take the answer.
  std::chrono::milliseconds patience{10'000};
};
static_assert(std::is_trivially_destructible_v<metrics_server_options>);

/// Serves metrics to Prometheus, or to a person with curl: GET /metrics over HTTP/1.1 (RFC 9112), one request for each
/// connection. Clients are not trusted: a request has 8 KiB and limited time, and an invalid one is answered with the
/// HTTP status for it.
///
///     const auto collect = [&](metrics& all) {
///       add_to(all, home, "main");
///       net::add_to(all, device.statistics(), "nic");
///     };
///     tasks.spawn(net::serve_metrics(device, "tcp://0.0.0.0:9475", collect));
///
/// asio_host::async() runs the same task in an Asio loop. There is no encryption and no authentication, so choose an
/// address that only the monitoring can reach. Move-only; it belongs to the executor on which it was made.
class metrics_server {
 public:
  /// Listens on "tcp://HOST:PORT"; port 0 lets the system choose. Throws weft::error, as stream_listener::listen()
  /// does. The device must outlive the server.
  static task<metrics_server> listen(device& through, std::string address, metrics_server_options options = {});

  /// The address at which it listens, with the port that was chosen: "tcp://10.0.0.7:9475".
  [[nodiscard]] std::string_view address() const noexcept { return listener_.address(); }

  /// Serves until it is stopped, or until close(). Each request calls `collect` to add the metrics, on the executor of
  /// the server, where counters of other executors, devices and pools may be read as well. If `collect` throws a
  /// std::exception, the answer has the status 500. `collect` must be an lvalue; it and the server must outlive the
  /// task, and the server must not be moved meanwhile. Throws weft::error if no more clients can be accepted, as
  /// stream_listener::next() does.
  template <std::invocable<metrics&> Collect>
  task<> serve(const Collect& collect) {
    return serve_source({&collect, [](const void* what, metrics& all) { (*static_cast<const Collect*>(what))(all); }});
  }
  template <class Collect>
  task<> serve(const Collect&& collect) = delete;
  /// Stops listening: serve() ends once each request under way has been answered, or its client has gone or run out of
  /// time.
  void close() noexcept { listener_.close(); }

 private:
  // A collector without its type.
  struct source {
    const void* what;
    void (*add_to)(const void* what, metrics& all);
  };
  metrics_server(stream_listener listener, metrics_server_options options) noexcept;
  task<> serve_source(source from);
  static task<> serve_client(stream_request request, source from, std::chrono::milliseconds patience);
  [[nodiscard]] static std::string answer(std::string_view request, source from);

  stream_listener listener_;
  metrics_server_options options_;
};

/// Listens on "tcp://HOST:PORT" and serves metrics there until it is stopped: see metrics_server. `collect` must be an
/// lvalue; it and the device must outlive the task.
template <std::invocable<metrics&> Collect>
task<> serve_metrics(device& through, std::string address, const Collect& collect) {
  auto server = co_await metrics_server::listen(through, std::move(address));
  co_await server.serve(collect);
}
/// Deleted, because a temporary would be destroyed before the task ends.
template <class Collect>
task<> serve_metrics(device& through, std::string address, const Collect&& collect) = delete;

}  // namespace weft::net
