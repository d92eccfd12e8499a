// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/tcp_window_watch.hpp>

// The C library's tcp_info ends before tcpi_notsent_bytes.
#include <linux/tcp.h>
#include <netinet/in.h>

#include <algorithm>

namespace weft::net {
namespace {

using std::chrono::milliseconds;

constexpr std::uint8_t closed_state = 7;  // TCP_CLOSE of the C library's header

bool ask(descriptor& socket, tcp_info& about) noexcept {
  socklen_t length = sizeof about;
  return socket.calls().getsockopt(socket.fd(), IPPROTO_TCP, TCP_INFO, &about, &length) >= 0;
}

}  // namespace

milliseconds bounded_patience(milliseconds dead_peer_after) noexcept {
  return std::clamp<milliseconds>(dead_peer_after, milliseconds(0), std::chrono::seconds(32767));
}

// When the kernel gives up, at least patience_ has passed since the last acknowledgement (tcpi_last_ack_recv). It may
// be more, because the kernel counts from when data was sent. That alone proves nothing: if this end is late to look,
// the last acknowledgement of a peer that has reset the connection is as old. But the kernel gives up only after it has
// asked in vain, and these counts begin anew at each acknowledgement.
bool tcp_window_watch::has_given_up() const noexcept {
  tcp_info about{};
  return patience_.count() > 0 && ask(socket_, about) && about.tcpi_state == closed_state &&
         (about.tcpi_retransmits != 0 || about.tcpi_probes != 0) && milliseconds(about.tcpi_last_ack_recv) >= patience_;
}

std::optional<std::uint64_t> tcp_window_watch::acknowledged_bytes() const noexcept {
  tcp_info about{};
  if (!ask(socket_, about)) return std::nullopt;
  return about.tcpi_bytes_acked;
}

bool tcp_window_watch::has_unacknowledged() const noexcept {
  tcp_info about{};
  if (!ask(socket_, about) || about.tcpi_state == closed_state) return false;
  return about.tcpi_unacked != 0 || about.tcpi_notsent_bytes != 0;
}

// If there is no memory for the timer, the next send arms it.
void tcp_window_watch::arm() noexcept {
  static_cast<void>(home_.try_arm(*this, later(home_.now(), std::max<duration>(between_looks(), milliseconds(1)))));
}

void tcp_window_watch::expired() noexcept {
  tcp_info about{};
  if (!ask(socket_, about)) return;
  const bool in_flight = about.tcpi_unacked != 0;
  const bool closed = !in_flight && about.tcpi_notsent_bytes != 0;
  if (closed) {
    look_at_closed(about);
  } else {
    closed_since_.reset();
    unanswered_since_.reset();
    allow(patience_);
  }
  if (in_flight || closed) arm();
}

void tcp_window_watch::look_at_closed(const tcp_info& about) noexcept {
  const time_point now = home_.now();
  // The window may have been closed since just after the previous look.
  if (!closed_since_) closed_since_ = now - between_looks();
  const bool answered = about.tcpi_probes == 0 || milliseconds(about.tcpi_last_ack_recv) < between_looks();
  if (answered) {
    unanswered_since_.reset();
  } else if (!unanswered_since_) {
    unanswered_since_ = now;
  }
  // After so long a silence, TCP_USER_TIMEOUT is not raised again, so the kernel soon ends the connection.
  if (unanswered_since_ && now - *unanswered_since_ >= patience_) return;
  allow(std::chrono::ceil<milliseconds>(now - *closed_since_) + patience_);
}

void tcp_window_watch::allow(milliseconds time) noexcept {
  if (time == allowed_) return;
  const int limit = static_cast<int>(std::min<milliseconds>(time, std::chrono::hours(500)).count());
  if (socket_.calls().setsockopt(socket_.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit) < 0) return;
  allowed_ = time;
}

}  // namespace weft::net
