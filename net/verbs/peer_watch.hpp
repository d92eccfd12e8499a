// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/endpoint.hpp>
#include <weft/net/verbs/send_queue.hpp>
#include <weft/runtime/error.hpp>

#include <chrono>
#include <cstdint>
#include <optional>

namespace weft::net::verbs {

/// Watches whether a link's peer is alive: looks twice in each dead_peer_after.
///
/// An idle queue pair does not notice that its peer died, so it gets a request that changes nothing. The state of
/// the port counts as well, because rxe does not count retries while its port is down.
class peer_watch {
 public:
  peer_watch(endpoint& of, send_queue& requests, const agreement& agreed) noexcept;
  peer_watch(const peer_watch&) = delete;
  peer_watch& operator=(const peer_watch&) = delete;

  void start(const landing_place& peers) noexcept;
  [[nodiscard]] bool is_on() const noexcept { return pause_.count() > 0; }
  /// The time between two looks.
  [[nodiscard]] std::chrono::milliseconds pause() const noexcept { return pause_; }

  /// Notes that a message has arrived.
  void heard() noexcept { active_ = true; }
  /// Notes that a request has completed: a sign of life if the completion takes the peer's answer.
  void heard_of(std::uint32_t mark) noexcept { active_ = active_ || requests_.has_answer(mark); }

  /// Looks once, and returns the reason if the peer now counts as dead. `awaits_message`: this end waits for
  /// the peer's first message.
  [[nodiscard]] std::optional<error> look(bool awaits_message) noexcept;
  /// Posts the keep-alive if nothing was heard since the previous call, nothing that awaits an answer is with the
  /// device, and the peer can be probed; never while the link `listens`. Call it after look().
  void ask(bool listens) noexcept;
  [[nodiscard]] const ibv_send_wr& keep_alive() const noexcept { return keep_alive_; }
  void keep_alive_ended() noexcept { keep_alive_posted_ = false; }

  /// Adds to `why` that the port is down, because then nobody can answer.
  [[nodiscard]] error blame_port(const error& why) const noexcept;
  [[nodiscard]] bool is_port_down() const noexcept { return endpoint_.home().audience().is_down(endpoint_.port()); }

 private:
  [[nodiscard]] bool completes_on_answer() const noexcept { return endpoint_.home().traits().completes_on_answer; }
  void fill_keep_alive() noexcept;
  void count_silence(bool awaits_message) noexcept;
  [[nodiscard]] std::uint64_t looks_to_spare() const noexcept;

  endpoint& endpoint_;
  send_queue& requests_;
  std::chrono::milliseconds pause_;
  bool asks_with_nothing_;
  bool may_read_;
  landing_place landing_;  // the peer's
  ibv_send_wr keep_alive_{};
  ibv_sge keep_alive_part_{};
  bool keep_alive_posted_ = false;
  bool port_was_down_ = false;      // at the last look
  bool active_ = false;             // the peer was heard since the last ask(), or start() spares it the first probe
  std::uint64_t silent_looks_ = 0;  // looks in a row at which an answer was awaited, and nothing had been heard
};

}  // namespace weft::net::verbs
