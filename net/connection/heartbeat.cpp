// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/heartbeat.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace weft::net {

using weft::detail::make_error;

namespace {

constexpr const char* no_answer = "the peer has answered no heartbeat: its program hangs or is stopped";
// The peer is given up on the third beat without a sign of life. It is asked on the first, and has two periods in which
// to answer, because this end may have been too busy to read its sockets during one of them.
constexpr unsigned last_silent_beat = 3;
constexpr std::chrono::milliseconds longest_period = std::chrono::hours(24);

}  // namespace

void heartbeat::start() noexcept {
  if (state_.properties().heartbeats && state_.options.heartbeat.count() > 0) arm();
}

void heartbeat::stop() noexcept {
  if (armed()) state_.home.disarm(*this);
}

// Arms the timer for the next beat. Beats are aligned, so that an executor wakes once for all of its connections with
// the same period. Ends the connection if there is no memory for the timer.
void heartbeat::arm() noexcept {
  if (state_.has_ended()) return;
  const duration period = std::min(state_.options.heartbeat, longest_period);
  const time_point now = state_.home.now();
  const time_point next = now + (period - now.time_since_epoch() % period);
  if (!state_.home.try_arm(*this, next)) state_.give_up(make_error(errc::no_memory, "arm the timer of the heartbeat"));
}

// A message from the peer is a sign of life. A completion is not, because a device answers reads and writes even for a
// stopped program; but while the heartbeat itself waits behind earlier posts, completions show that it will be sent.
void heartbeat::beat() noexcept {
  if (state_.has_ended() || state_.shut_down) return;
  const bool moved = std::exchange(moved_, false);
  if (std::exchange(heard_, false)) {
    silent_beats_ = 0;
  } else if (!asking_ || !moved) {
    ++silent_beats_;
  }
  if (silent_beats_ == last_silent_beat) return state_.give_up(make_error(errc::peer_vanished, no_answer));
  if (silent_beats_ == 1 && !asking_) ask();
  arm();
}

void heartbeat::ask() noexcept {
  if (state_.is_silent()) return;
  asking_ = true;
  question_owed_ = out_.is_busy_with(message_kind::heartbeat);
  if (!question_owed_) out_.post_control(message_kind::heartbeat);
}

void heartbeat::answer() noexcept {
  if (state_.is_silent()) return;
  answer_owed_ = out_.is_busy_with(message_kind::credits);
  if (!answer_owed_) out_.post_control(message_kind::credits);
}

bool heartbeat::take_slot() noexcept {
  asking_ = question_owed_;
  if (std::exchange(question_owed_, false)) {
    ask();
  } else if (std::exchange(answer_owed_, false)) {
    answer();
  } else {
    return false;
  }
  return true;
}

}  // namespace weft::net
