// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/timer.hpp>

#include <chrono>
#include <cstdint>
#include <optional>

struct tcp_info;

namespace weft::net {

/// `dead_peer_after`, limited to what the kernel accepts as a time for prepare_socket() and tcp_window_watch.
[[nodiscard]] std::chrono::milliseconds bounded_patience(std::chrono::milliseconds dead_peer_after) noexcept;

/// Keeps the kernel from declaring dead a peer that is alive but does not read. TCP_USER_TIMEOUT counts the time during
/// which the peer's window is closed as silence (tcp(7); tcp_probe_timer() in the kernel), although the peer
/// acknowledges every window probe.
///
/// While sent data waits for the peer, the watch looks at the socket four times in `dead_peer_after`. As long as the
/// window is closed and probes are answered, it raises TCP_USER_TIMEOUT. A peer whose machine falls silent behind a
/// closed window is detected within about three times `dead_peer_after`; any other dead peer is detected as early as
/// without the watch.
class tcp_window_watch final : private detail::timer {
 public:
  /// Watches a socket that prepare_socket() has prepared with the same time. With a time of zero it watches nothing,
  /// and has_given_up() is false. The executor and the socket must outlive the watch.
  tcp_window_watch(executor_core& home, descriptor& socket, std::chrono::milliseconds dead_peer_after) noexcept
      : home_(home), socket_(socket), patience_(bounded_patience(dead_peer_after)), allowed_(patience_) {}
  tcp_window_watch(const tcp_window_watch&) = delete;
  tcp_window_watch& operator=(const tcp_window_watch&) = delete;
  ~tcp_window_watch() { stop(); }

  /// Begins to watch the data that is sent next. Call it whenever data is handed to the kernel for sending.
  void sending() noexcept {
    if (!timer::armed() && patience_.count() > 0) arm();
  }
  /// Whether the kernel has declared the peer dead: TCP is closed, and the peer has acknowledged nothing for
  /// dead_peer_after, although it was asked. Needed because the kernel reports the error only once, and io_uring
  /// swallows it if part of the same send went out before.
  [[nodiscard]] bool has_given_up() const noexcept;
  /// How many bytes the peer's machine has acknowledged in all. Empty if the kernel does not tell.
  [[nodiscard]] std::optional<std::uint64_t> acknowledged_bytes() const noexcept;
  /// Whether something that was handed to the kernel, the FIN included, is not acknowledged by the peer's machine yet.
  /// False if TCP is closed, or if the kernel does not tell.
  [[nodiscard]] bool has_unacknowledged() const noexcept;
  /// Ends the watch. Call it before the socket is closed.
  void stop() noexcept {
    if (timer::armed()) home_.disarm(*this);
  }

 private:
  [[nodiscard]] duration between_looks() const noexcept { return patience_ / 4; }
  void arm() noexcept;
  void expired() noexcept override;
  void look_at_closed(const tcp_info& about) noexcept;
  void allow(std::chrono::milliseconds time) noexcept;

  executor_core& home_;
  descriptor& socket_;
  std::chrono::milliseconds patience_;
  std::chrono::milliseconds allowed_;  // TCP_USER_TIMEOUT as it was set last
  std::optional<time_point> closed_since_;
  std::optional<time_point> unanswered_since_;  // since when probes have gone unanswered
};

}  // namespace weft::net
