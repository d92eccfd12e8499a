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

/// The longest time for prepare_socket() and tcp_window_watch that the kernel takes.
[[nodiscard]] std::chrono::milliseconds bounded_patience(std::chrono::milliseconds dead_peer_after) noexcept;

/// Keeps the kernel from taking a peer for dead that answers and only does not read. TCP_USER_TIMEOUT counts the time
/// in which the peer's window is closed like silence (tcp(7); tcp_probe_timer() in the kernel), although the peer
/// acknowledges every probe.
///
/// While something that was sent waits for the peer, it looks four times in `dead_peer_after`. As long as the window is
/// closed and probes are answered, it moves the end of the kernel's patience ahead. A peer whose machine falls silent
/// behind a closed window is found out within about three times `dead_peer_after`; every other one as before.
class tcp_window_watch final : private detail::timer {
 public:
  /// Of a socket that prepare_socket() has prepared with the same time; both outlive it. Zero: does nothing.
  tcp_window_watch(executor_core& home, descriptor& socket, std::chrono::milliseconds dead_peer_after) noexcept
      : home_(home), socket_(socket), patience_(bounded_patience(dead_peer_after)), allowed_(patience_) {}
  tcp_window_watch(const tcp_window_watch&) = delete;
  tcp_window_watch& operator=(const tcp_window_watch&) = delete;
  ~tcp_window_watch() { stop(); }

  /// Something is given to the kernel to send.
  void sending() noexcept {
    if (!timer::armed() && patience_.count() > 0) arm();
  }
  /// Whether the kernel has taken the peer for dead. It says so once, and io_uring keeps that to itself where the same
  /// send has got rid of something before.
  [[nodiscard]] bool has_given_up() const noexcept;
  /// How many bytes the peer's machine has acknowledged, ever. Empty if the kernel does not say.
  [[nodiscard]] std::optional<std::uint64_t> acknowledged_bytes() const noexcept;
  /// Whether the peer's machine has not acknowledged all that was sent, the end included.
  [[nodiscard]] bool has_unacknowledged() const noexcept;
  /// The socket is about to be closed.
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
  std::chrono::milliseconds allowed_;  // what the kernel was told last
  std::optional<time_point> closed_since_;
  std::optional<time_point> unanswered_since_;  // a probe
};

}  // namespace weft::net
