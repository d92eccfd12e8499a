// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/watch.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace weft::net::rails {
namespace {

using namespace std::chrono_literals;

// The pause between looks while something is in flight. A rail that has not moved is given up at the third look in a
// row at which another rail has, less than 100 ms after it fell silent; later if that has proved too soon. While all
// rails are silent none can be blamed, and the pauses double, up to longest_watch, until a rail shows a sign of life.
constexpr duration watch_period = 16ms;
constexpr duration longest_watch = 60s;
// A rail that was given up for its silence and is back sooner than this was slow, not silent.
constexpr duration soon_back = 1s;

}  // namespace

void watch::arm_soon() noexcept {
  if (owner_.has_ended()) return;
  pause_ = watch_period;
  arm_at(owner_.home().now() + watch_period);
}

void watch::arm_at(time_point when) noexcept {
  stop();
  is_long_pause_ = when > owner_.home().now() + watch_period;
  if (!owner_.home().try_arm(*this, when)) {
    owner_.fail(weft::detail::make_error(errc::no_memory, "watch the rails"));
  }
}

void watch::stop() noexcept {
  if (armed()) owner_.home().disarm(*this);
}

void watch::expired() noexcept {
  const rail_owner::turn outer(owner_);
  if (owner_.has_ended() || !subject_.look_at_limits()) return;
  pause_ = look_for_silence() == rail::sign::none ? std::min(2 * pause_, longest_watch) : watch_period;
  if (owner_.has_ended()) return;
  if (const auto next = next_look()) arm_at(*next);
}

std::optional<time_point> watch::next_look() const noexcept {
  const time_point now = owner_.home().now();
  std::optional<time_point> next = subject_.next_limit();
  // next_limit() goes on returning a limit that has passed until the link of its rail has ended.
  if (next) next = std::max(*next, now + watch_period);
  if (subject_.waits_for_rails()) next = std::min(next.value_or(time_point::max()), now + pause_);
  return next;
}

rail::sign watch::look_for_silence() noexcept {
  std::array<rail::sign, max_rails> signs{};
  rail::sign latest = rail::sign::none;
  bool are_suspects = false;
  patience_.age();
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    rail& way = owner_.rail_at(i);
    seen& its = seen_[i];
    if (!way.is_open()) continue;
    signs[i] = way.last_sign();
    latest = std::max(latest, signs[i]);
    const bool waits = subject_.waits_for(way);
    const bool was_suspected = std::exchange(its.is_suspected, waits && signs[i] == rail::sign::none);
    if (was_suspected && signs[i] != rail::sign::none) patience_.moved_after(its.silent_looks);
    if (!was_suspected) its.silent_looks = 0;
    are_suspects = are_suspects || its.is_suspected;
  }
  if (!are_suspects) return latest;
  ask_rails();
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    rail& way = owner_.rail_at(i);
    seen& its = seen_[i];
    if (!way.is_open() || !its.is_suspected) continue;
    const rail::sign needed = way.waits_for_device() ? rail::sign::of_machine : rail::sign::of_program;
    if (latest < needed || ++its.silent_looks < patience_.looks()) continue;
    its.given_up_at = owner_.home().now();
    way.give_up("no progress on this rail while another rail made progress");
    break;
  }
  return latest;
}

// Asks for an answer over each open rail, so that it moves if it can, even if only a slow answer of the peer's is due
// there. Leaves out rails with waiting control messages, and suspected rails with parts in flight.
void watch::ask_rails() noexcept {
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    rail& way = owner_.rail_at(i);
    if (!way.is_open() || way.waiting_controls() != 0) continue;
    if (seen_[i].is_suspected && way.parts_out() != 0) continue;
    way.send({.kind = control_kind::confirm});
  }
}

void watch::rail_opened(const rail& which) noexcept {
  seen& its = seen_[which.number()];
  its.is_suspected = false;
  const bool was_there = its.given_up_at && owner_.home().now() - *its.given_up_at < soon_back;
  if (was_there) patience_.moved_after(its.silent_looks);
  its.given_up_at.reset();
}

}  // namespace weft::net::rails
