// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>

#include <cassert>
#include <cstdint>

namespace weft::net {

/// The life of a link: its steps, and the events that report the link's end to the connection, each exactly once. Steps
/// that are legal only at certain stages assert that they are.
///
/// Stages:
///   open     requests are executed
///   ended    link_events::ended() was called
///   leaving  the link only releases what it holds: nothing is posted or delivered any more
///   closed   everything has completed or been flushed
///   over     link_events::closed() was called, and may have destroyed the link
/// Each end also finishes its own half of the link: it announces that it sends no more. A link closes in an orderly way
/// once both halves have finished; a broken link closes without waiting for the peer.
class link_life {
 public:
  link_life() = default;
  link_life(const link_life&) = delete;
  link_life& operator=(const link_life&) = delete;
  ~link_life() { assert((events_ == nullptr || is_closed()) && "a link was destroyed before it was closed"); }

  // ---- steps ----

  /// Starts the life: the link's end is reported to `events`.
  void begin(link_events& events) noexcept {
    assert(events_ == nullptr && "a link was started twice");
    events_ = &events;
  }
  /// Notes that the connection posts no more.
  void shut_down() noexcept {
    if (own_ == half::open) own_ = half::shutting_down;
  }
  /// Notes that this end has announced that it sends no more, or that it will never send anything again.
  void finish() noexcept {
    assert((own_ == half::shutting_down || has_ended()) && !has_finished() && "an end finished too early, or twice");
    own_ = half::finished;
  }
  /// Notes that the peer sends no more.
  void peer_finished() noexcept { peer_finished_ = true; }
  /// Notes that the peer's process or its end of the wire is gone: nothing more comes from it, or reaches it.
  void peer_left() noexcept { peer_left_ = true; }
  /// Stops waiting for the peer. end() follows, unless the link has ended already.
  void break_off() noexcept {
    assert(!is_closed() && "a link was broken off after it had closed");
    broken_ = true;
  }
  /// Ends the link, and reports it to the connection, which may call back into the link.
  void end(bool orderly, const error& why) noexcept {
    assert(has_begun() && !has_ended() && "a link ended before it was started, or twice");
    stage_ = stage::ended;
    events_->ended(orderly, why);
  }
  /// Enters `leaving`, after end().
  void leave() noexcept {
    assert(stage_ == stage::ended && "a link left before it had ended, or twice");
    stage_ = stage::leaving;
  }
  /// Enters `closed`, once everything has completed or been flushed; tell_closed() follows.
  void close() noexcept {
    assert(has_ended() && !is_closed() && "a link closed before it had ended, or twice");
    stage_ = stage::closed;
  }
  /// Reports the close to the connection, which may destroy the link: the caller must not touch the link afterwards.
  void tell_closed() noexcept {
    assert(stage_ == stage::closed && "closed() was called too early, or twice");
    stage_ = stage::over;
    events_->closed();
  }

  // ---- queries ----

  /// Whether begin() was called.
  [[nodiscard]] bool has_begun() const noexcept { return events_ != nullptr; }
  /// The events that begin() was given; valid only after begin().
  [[nodiscard]] link_events& events() const noexcept { return *events_; }

  /// Whether the link has come to this stage, or beyond.
  /// @{
  [[nodiscard]] bool has_ended() const noexcept { return stage_ != stage::open; }
  [[nodiscard]] bool is_leaving() const noexcept { return stage_ >= stage::leaving; }
  [[nodiscard]] bool is_closed() const noexcept { return stage_ >= stage::closed; }
  /// @}
  /// Whether break_off() was called.
  [[nodiscard]] bool is_broken() const noexcept { return broken_; }

  /// Whether this end posts no more; whether it has finished its half.
  /// @{
  [[nodiscard]] bool is_shut_down() const noexcept { return own_ != half::open; }
  [[nodiscard]] bool has_finished() const noexcept { return own_ == half::finished; }
  /// @}
  /// Whether the peer has finished its half; whether it is gone.
  /// @{
  [[nodiscard]] bool peer_has_finished() const noexcept { return peer_finished_; }
  [[nodiscard]] bool peer_has_left() const noexcept { return peer_left_; }
  /// @}

  /// Whether the link has ended, or has begun to: this end finishes, or the peer has finished or left.
  [[nodiscard]] bool is_ending() const noexcept {
    return has_ended() || own_ != half::open || peer_finished_ || peer_left_;
  }
  /// Whether the connection waits for finish().
  [[nodiscard]] bool is_finishing() const noexcept { return own_ == half::shutting_down && !broken_; }
  /// Whether the link has ended, and no longer waits for the peer.
  [[nodiscard]] bool may_close() const noexcept {
    return has_ended() && (broken_ || (has_finished() && peer_finished_));
  }

 private:
  enum class stage : std::uint8_t { open, ended, leaving, closed, over };
  enum class half : std::uint8_t { open, shutting_down, finished };

  link_events* events_ = nullptr;
  stage stage_ = stage::open;
  half own_ = half::open;
  bool peer_finished_ = false;
  bool peer_left_ = false;
  bool broken_ = false;
};

}  // namespace weft::net
