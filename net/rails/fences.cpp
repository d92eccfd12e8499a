// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/fences.hpp>

#include <algorithm>
#include <utility>

namespace weft::net::rails {

// ---- fences that this end asks for ----

void fences::rail_lost(const rail& which, bool carried_messages) noexcept {
  asked_here& its = ours_[which.number()];
  its.is_due = true;
  its.epoch = which.epoch();
  its.is_answered = false;
  // mutant: do not wait for what has come
  if (carried_messages && !std::exchange(its.carried_messages, true)) ++unsettled_;
}

void fences::ask(const rail& about) noexcept {
  const asked_here& its = ours_[about.number()];
  owner_.control_rail()->send({.kind = control_kind::fence,
                               .rail = about.number(),
                               .carried_messages = its.carried_messages,
                               .epoch = its.epoch});
}

void fences::answered(std::size_t on, std::uint64_t received) noexcept {
  ours_[on].is_answered = true;
  most_received_ = std::max(most_received_, received);
}

bool fences::is_over(const rail& which) const noexcept {
  const asked_here& its = ours_[which.number()];
  if (!its.is_due || !its.is_answered) return false;  // mutant: go on over another rail
  return which.epoch() != its.epoch || which.phase() == rail::state::absent;
}

bool fences::settle(std::size_t on) noexcept {
  ours_[on].is_due = false;
  return std::exchange(ours_[on].carried_messages, false) && --unsettled_ == 0;
}

bool fences::is_answer_due() const noexcept {
  return std::any_of(ours_.begin(), ours_.end(),
                     [](const asked_here& each) { return each.is_due && !each.is_answered; });
}

// ---- fences that the peer asks for ----

void fences::asked(const rail& about, rail& over, const control& said) noexcept {
  asked_by_peer& its = peers_[about.number()];
  its.is_owed = true;
  its.epoch = said.epoch;
  if (!said.carried_messages) return;
  its.messages_move_to = &over;
  its.moves_to_epoch = over.epoch();
}

void fences::answer(const rail& about) noexcept {
  asked_by_peer& its = peers_[about.number()];
  if (!its.is_owed) return;
  if (about.epoch() <= its.epoch && about.phase() != rail::state::absent) return;
  rail* const target = std::exchange(its.messages_move_to, nullptr);
  // While another rail has the receives, its own fence moves them, once its link has closed and given all of them back.
  const bool may_move = target != nullptr && target->phase() == rail::state::up;
  // mutant: go on to receive
  if (may_move && target->epoch() == its.moves_to_epoch && incoming_.over() == nullptr) incoming_.receive_over(target);
  rail* const over = owner_.control_rail();
  if (over == nullptr) return;
  over->send({.kind = control_kind::fenced, .rail = about.number(), .epoch = its.epoch, .number = incoming_.count()});
}

// ---- answers that may still come ----

bool fences::awaits_answers() const noexcept {
  return std::any_of(ours_.begin(), ours_.end(), [](const asked_here& each) { return each.answers_until.has_value(); });
}

bool fences::stop_awaiting(std::size_t on) noexcept {
  return std::exchange(ours_[on].answers_until, std::nullopt).has_value();
}

std::optional<time_point> fences::first_deadline() const noexcept {
  std::optional<time_point> first;
  for (const asked_here& each : ours_) {
    if (each.answers_until) first = std::min(first.value_or(time_point::max()), *each.answers_until);
  }
  return first;
}

void fences::give_up_late(time_point now) noexcept {
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    if (ours_[i].answers_until && now >= *ours_[i].answers_until) owner_.rail_at(i).give_up(left_by_peer);
  }
}

}  // namespace weft::net::rails
