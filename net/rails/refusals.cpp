// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/outage.hpp>
#include <weft/net/rails/refusals.hpp>

#include <algorithm>
#include <new>

namespace weft::net::rails {

using weft::detail::make_error;

bool refusals::may_have_been_late(const rail& which, const refused_access& what, const error& why) noexcept {
  const std::size_t number = which.number();
  const std::uint32_t epoch = which.epoch();
  refused_over& its = all_[number];
  if (!what.is_peers) {
    its.by_peer = 0;
    its.why = why;
    const std::uint64_t handle = what.key ? peers_.handle_of(number, epoch, *what.key) : 0;
    if (handle != 0) note_named(number, epoch, handle);
    return handle != 0 || !what.key;
  }
  withdrawn_memory& withdrawn = own_.withdrawn();
  if (what.key) {
    const withdrawn_memory::item* const gone = withdrawn.find(number, epoch, *what.key);
    if (gone == nullptr) return false;
    its.late = gone->handle;
    note_late(number, epoch, *gone);
    return true;
  }
  if (its.explained == std::uint64_t{epoch} + 1) return true;
  if (!withdrawn.has_any_on(number, epoch)) return false;
  its.unexplained = why;
  its.unexplained_epoch = epoch;
  its.unexplained_since = owner_.home().now();
  return true;
}

void refusals::note_named(std::size_t on, std::uint32_t epoch, std::uint64_t handle) noexcept try {
  all_[on].by_peer = handle;
  all_[on].by_peer_epoch = epoch;
  peers_.withdraw(handle, false);
} catch (const std::bad_alloc&) {
  owner_.fail(make_error(errc::no_memory, "store that the peer has taken memory back"));
}

void refusals::tell(const rail& which) noexcept {
  const refused_over& its = all_[which.number()];
  rail& over = *owner_.control_rail();
  const withdrawn_memory::item* const gone = its.late != 0 ? own_.withdrawn().find(its.late) : nullptr;
  if (gone != nullptr) own_memory::tell_withdrawn(over, gone->handle, gone->at_deadline);
  if (its.by_peer == 0) return;
  over.send({.kind = control_kind::refused, .rail = which.number(), .epoch = its.by_peer_epoch, .number = its.by_peer});
}

void refusals::explained(const rail& about, const control& said) noexcept {
  const withdrawn_memory::item* const gone = own_.withdrawn().find(said.number);
  if (gone == nullptr || !gone->was_on(about.number(), said.epoch)) {
    return owner_.refuse_peer("an access to memory that was not open to the peer, or not for that");
  }
  refused_over& its = all_[about.number()];
  if (its.unexplained && said.epoch == its.unexplained_epoch) its.unexplained.reset();
  note_late(about.number(), said.epoch, *gone);
  if (rail* const over = owner_.control_rail()) own_memory::tell_withdrawn(*over, gone->handle, gone->at_deadline);
}

// Reports a late access, but only once for each link of a rail.
void refusals::note_late(std::size_t on, std::uint32_t epoch, const withdrawn_memory::item& what) noexcept {
  if (all_[on].explained > epoch) return;
  all_[on].explained = std::uint64_t{epoch} + 1;
  events_->came_late(what.handle, what.at_deadline ? exposure_end::deadline : exposure_end::owner);
}

void refusals::settled(std::size_t on) noexcept {
  all_[on].by_peer = all_[on].late = 0;
  all_[on].why.reset();
}

void refusals::may_explain(time_point now) noexcept {
  for (refused_over& each : all_) each.unexplained_since = now;
}

std::optional<time_point> refusals::due_at() const noexcept {
  std::optional<time_point> first;
  for (const refused_over& each : all_) {
    if (!each.unexplained) continue;
    first = std::min(first.value_or(time_point::max()), later(each.unexplained_since, time_to_explain));
  }
  return first;
}

const error* refusals::overdue(time_point now) const noexcept {
  for (const refused_over& each : all_) {
    if (each.unexplained && now - each.unexplained_since >= time_to_explain) return &*each.unexplained;
  }
  return nullptr;
}

const error* refusals::first_why() const noexcept {
  for (const refused_over& each : all_) {
    if (each.why) return &*each.why;
  }
  return nullptr;
}

}  // namespace weft::net::rails
