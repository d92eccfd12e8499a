// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/clock.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <string>

namespace weft::net::rails {

/// How long a peer may take to say that it has used memory that had been taken back. A connection that has lost a rail
/// to such an access waits at least as long for a rail, even if resume_within is shorter.
inline constexpr std::chrono::milliseconds time_to_explain{2000};

/// The time in which a connection has no rail, and waits for one to come back.
class outage {
 public:
  /// Sets how long an outage may last: connection_options::resume_within. Not called if the peer does not resume.
  void may_last(std::chrono::milliseconds given) noexcept { given_ = given; }

  [[nodiscard]] bool is_on() const noexcept { return since_.has_value(); }
  [[nodiscard]] std::chrono::milliseconds limit() const noexcept {
    return by_refusals_ ? std::max(given_, time_to_explain) : given_;
  }
  [[nodiscard]] time_point since() const noexcept { return *since_; }
  /// When it has lasted too long; only while it is on.
  [[nodiscard]] time_point over_at() const noexcept {
    return std::max(later(*since_, limit()), excused_until_.value_or(time_point::min()));
  }
  [[nodiscard]] bool has_lasted_too_long(time_point now) const noexcept { return since_ && now >= over_at(); }
  /// Lets it last a little longer, once, if this look finds it over for a while. Then this end was away: it has neither
  /// asked the peer for a rail meanwhile, nor read what the peer asks. True if it does so now.
  [[nodiscard]] bool excuses_absence(time_point now) noexcept {
    constexpr std::chrono::milliseconds absence{100};
    if (!since_ || excused_until_ || now < later(over_at(), absence)) return false;
    excused_until_ = later(now, time_to_explain);
    return true;
  }
  /// Why the last rail ended; only after begin().
  [[nodiscard]] const error& why() const noexcept { return *why_; }

  void begin(time_point now, const error& why) noexcept {
    if (since_) return;
    since_ = now;
    excused_until_.reset();
    came_.reset();
    why_ = why;
    last_attempt_.reset();
  }
  /// Ends the outage if it is on, because a rail is up.
  void end() noexcept { since_.reset(); }
  void rail_came() noexcept {
    since_.reset();
    suspicion_.reset();
    by_refusals_ = false;
    came_.set();
  }
  /// Wakes all who wait for a rail, because the link has ended.
  void give_up() noexcept { came_.set(); }
  [[nodiscard]] auto wait_for_rail() noexcept { return came_.wait(); }

  /// Notes that a refused access to memory that was taken back has ended a rail, or may have.
  void note_refusal() noexcept { by_refusals_ = true; }
  /// Notes the error of a rail of which nobody knows whether its device has failed or has refused an access of the
  /// peer's.
  void suspect(const error& why) noexcept { suspicion_ = why; }
  [[nodiscard]] const error& suspicion_or(const error& why) const noexcept { return suspicion_ ? *suspicion_ : why; }
  void note_attempt(const error& why) noexcept { last_attempt_ = why; }
  /// The error of a connection for which no rail came back in time.
  [[nodiscard]] error why_none_came() const noexcept try {
    const std::string last = last_attempt_ ? fmt::format(" ({})", last_attempt_->what()) : std::string();
    return why_->within(fmt::format("no rail has come back within {} ms{}", limit().count(), last));
  } catch (const std::bad_alloc&) {
    return *why_;
  }

 private:
  std::chrono::milliseconds given_{};
  std::optional<time_point> since_;  // set from the loss of the last rail until one comes; stays set if the link ends
  std::optional<time_point> excused_until_;
  std::optional<error> why_;
  std::optional<error> suspicion_;     // set by suspect(), until a rail comes
  std::optional<error> last_attempt_;  // why the last attempt to get a rail in this outage failed
  event came_;                         // set when a rail has come after the outage began, or the link has ended
  bool by_refusals_ = false;           // set by note_refusal(), until a rail comes
};

}  // namespace weft::net::rails
