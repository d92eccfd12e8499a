// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool.hpp>
#include <weft/net/link/receive_memory.hpp>
#include <weft/net/rails/joining.hpp>
#include <weft/net/rails/told_address.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/system/random.hpp>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace weft::net::rails {

using weft::detail::make_error;

namespace {

using namespace std::chrono_literals;

constexpr duration join_timeout = 2s;
// If a rail ends sooner than this after it came up, this end pauses before it asks for the rail again.
constexpr duration lasting = 1s;
constexpr retry_options first_pauses{.first_pause = 20ms, .max_pause = 2000ms};

bool can_do(const capabilities& of_rail, const capabilities& what) noexcept {
  return of_rail.max_parts >= what.max_parts && of_rail.max_read_parts >= what.max_read_parts &&
         (of_rail.outgoing_reads != 0 || what.outgoing_reads == 0);
}

}  // namespace

joining::joining(rail_owner& owner, host& home, link_tasks& tasks, join_options&& how, const capabilities& wanted,
                 std::string_view peer)
    : owner_(owner), host_(home), tasks_(tasks), set_up_(std::move(how)), wanted_(wanted), peer_(peer) {
  pauses_seed_ = weft::detail::draw<std::uint64_t>(owner_.home().calls());
  for (std::size_t i = 0; i < set_up_.routes.size(); ++i) places_.emplace_back(*this, i);
}

back_off joining::new_pauses() noexcept {
  retry_options how = first_pauses;
  how.seed = pauses_seed_++;
  return back_off(how);
}

bool joining::is_far(const transport& way) const noexcept {
  const int memory = set_up_.how.pool != nullptr ? set_up_.how.pool->numa_node() : -1;
  const int device = way.domain().capabilities().numa_node;
  return memory >= 0 && device >= 0 && memory != device;
}

// ---- greeting ----

void joining::greeted(rail& over) noexcept {
  if (set_up_.connects) {
    use_told_addresses();
    return ask_for_all();
  }
  tell_addresses(over);
  over.send({.kind = control_kind::hello});
}

void joining::tell_addresses(rail& over) noexcept try {
  for (std::size_t i = 0; i < set_up_.own_addresses.size(); ++i) {
    if (const auto said = tell_address(set_up_.own_addresses[i], i)) over.send(*said);
  }
} catch (const std::bad_alloc&) {
  owner_.fail(make_error(errc::no_memory, "tell the peer where else this end listens"));
}

void joining::learn_address(const control& said) noexcept try {
  if (!set_up_.connects || told_.size() >= max_rails) {
    return owner_.refuse_peer("more addresses than there are rails");
  }
  told_.push_back(told_address(said, peer_).value_or(std::string()));
} catch (const std::bad_alloc&) {
  owner_.fail(make_error(errc::no_memory, "store an address of the peer"));
}

// The user has named the first rail's address. The other rails use the peer's addresses that follow it, in order and
// around the end of the list.
void joining::use_told_addresses() noexcept try {
  if (!set_up_.learns_addresses || told_.empty()) return;
  const auto first = std::find(told_.begin(), told_.end(), peer_);
  const auto offset = static_cast<std::size_t>(first != told_.end() ? first - told_.begin() : 0);
  for (std::size_t i = 1; i < set_up_.routes.size(); ++i) {
    rail_route& route = set_up_.routes[i];
    const std::string& other = told_[(offset + i) % told_.size()];
    if (!other.empty() && route.way->understands(other)) route.address = other;
  }
} catch (const std::bad_alloc&) {
  owner_.fail(make_error(errc::no_memory, "store the addresses of the peer"));
}

// ---- when to ask ----

void joining::ask_for_all() noexcept {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const bool is_absent = !places_[i].is_joining && owner_.rail_at(i).phase() == rail::state::absent;
    if (is_absent) ask_later(i, duration::zero());
  }
}

void joining::ask_anew() noexcept {
  for (place& each : places_) {
    each.pauses = new_pauses();
    owner_.home().disarm(each.again);
  }
  ask_for_all();
}

void joining::ask_again(std::size_t number) noexcept {
  const rail_owner::turn outer(owner_);
  place& its = places_[number];
  if (!owner_.takes_rails() || its.is_joining || owner_.rail_at(number).phase() != rail::state::absent) return;
  its.is_joining = true;
  tasks_.begin([&] { return try_rail(*this, number); }, "ask for a rail");
}

void joining::ask_later(std::size_t number, duration pause) noexcept {
  place& its = places_[number];
  if (!owner_.takes_rails() || !set_up_.connects || its.again.armed()) return;
  executor_core& home = owner_.home();
  if (!home.try_arm(its.again, home.now() + pause)) owner_.fail(make_error(errc::no_memory, "ask for a rail"));
}

void joining::rail_closed(std::size_t number) noexcept {
  place& its = places_[number];
  const bool has_lasted = its.opened_at && owner_.home().now() - *its.opened_at >= lasting;
  its.opened_at.reset();
  if (has_lasted) its.pauses = new_pauses();
  ask_later(number, has_lasted ? duration::zero() : its.pauses.next());  // mutant: never take a rail back
}

void joining::shut(std::size_t number, std::uint32_t epoch) noexcept {
  places_[number].shut_epoch = std::max(places_[number].shut_epoch, epoch);
}

void joining::stop() noexcept {
  for (place& each : places_) {
    if (each.again.armed()) owner_.home().disarm(each.again);
    each.gone.set();
  }
}

// ---- asking and admitting ----

task<> joining::try_rail(joining& self, std::size_t number) {
  place& its = self.places_[number];
  const flag_while joins(its.is_joining);
  bool has_joined = false;
  try {
    has_joined = co_await ask_for_rail(self, number);
  } catch (const std::bad_alloc&) {  // there may be memory the next time
  }
  if (has_joined) {
    its.pauses = self.new_pauses();
  } else {
    self.ask_later(number, its.pauses.next());
  }
}

task<bool> joining::ask_for_rail(joining& self, std::size_t number) {
  place& its = self.places_[number];
  rail& way = self.owner_.rail_at(number);
  const rail_route& route = self.set_up_.routes[number];
  join asked;
  asked.rail = static_cast<std::uint8_t>(number);
  asked.fabric = static_cast<std::uint8_t>(route.way->domain().fabric());
  asked.epoch = its.asked_epoch = std::max(its.asked_epoch, way.epoch()) + 1;
  asked.id = self.set_up_.id;
  asked.landing = route.way->landing();
  const auto words = asked.pack();
  try {
    rail_start how = co_await prepare(self);
    const set_up_options set_up = self.set_up_of(words);
    new_link made = co_await route.way->connect(route.address, set_up);
    auto answer = join::unpack(made.peer_private_data);
    if (!answer || answer->rail != number)
      throw error(errc::protocol_error, "the peer's answer to a joining rail is malformed");
    if (!self.may_begin(number, asked.epoch)) co_return false;
    if (!can_do(made.link->properties(), self.wanted_)) {
      throw error(errc::not_supported,
                  "this rail allows fewer scatter/gather elements than the first rail, or no reads");
    }
    how.carrier = std::move(made.link);
    answer->epoch = asked.epoch;
    const rail_owner::turn outer(self.owner_);
    self.begin(number, *route.way, *answer, std::move(how));
    way.knock();
    self.host_.link_began();
    co_return way.phase() == rail::state::up;
  } catch (const error& why) {
    if (why.code() == errc::canceled) throw;
    way.health().note_why(why.what());
    self.host_.not_joined(way, route, why);
  }
  co_return false;
}

void joining::asked(const join& said, std::unique_ptr<link_request> request) noexcept {
  const rail_owner::turn outer(owner_);
  if (!owner_.takes_rails() || said.rail >= places_.size()) return;  // destroying the request rejects it
  tasks_.begin([&] { return admit(*this, said, std::move(request)); }, "admit a rail");
}

task<> joining::admit(joining& self, join said, std::unique_ptr<link_request> request) {
  place& its = self.places_[said.rail];
  rail& which = self.owner_.rail_at(said.rail);
  if (its.is_joining || said.epoch <= std::max(which.epoch(), its.shut_epoch)) co_return;
  const flag_while joins(its.is_joining);
  while (which.phase() != rail::state::absent) {  // the peer has lost the previous link, which this end has not noticed
    which.give_up("the peer asks for this rail anew");
    if (which.phase() == rail::state::absent) break;
    its.gone.reset();
    co_await its.gone.wait();
  }
  if (self.owner_.has_ended()) co_return;
  rail_start how = co_await prepare(self);
  const auto& ways = self.set_up_.ways;
  transport& way = request->fabric < ways.size() ? *ways[request->fabric] : *self.set_up_.routes[said.rail].way;
  join answer;
  answer.rail = said.rail;
  answer.fabric = static_cast<std::uint8_t>(way.domain().fabric());
  answer.epoch = said.epoch;
  answer.landing = way.landing();
  const auto words = answer.pack();
  set_up_options set_up = self.set_up_of(words);
  set_up.first_receives = how.receives;  // the peer speaks first, and at once
  how.carrier = co_await request->accept(set_up);
  if (!self.may_begin(said.rail, said.epoch)) co_return;
  if (!can_do(how.carrier->properties(), self.wanted_)) co_return;
  const rail_owner::turn outer(self.owner_);
  self.begin(said.rail, way, said, std::move(how));
  self.host_.link_began();
}

bool joining::may_begin(std::size_t number, std::uint32_t epoch) const noexcept {
  const place& its = places_[number];
  // mutant: let a rail begin
  return owner_.takes_rails() && owner_.rail_at(number).phase() == rail::state::absent && epoch > its.shut_epoch;
}

set_up_options joining::set_up_of(std::span<const std::byte> private_data) const {
  set_up_options how = set_up_.how;
  how.deadline = later(owner_.home().now(), join_timeout);
  how.private_data = private_data;
  how.source = set_up_.source;
  return how;
}

task<rail_start> joining::prepare(joining& self) {
  rail_start made;
  mr::pool& pool = *self.set_up_.how.pool;
  const time_point deadline = later(self.owner_.home().now(), join_timeout);
  const std::size_t bytes = self.set_up_.how.receive_bytes;
  auto receives = co_await find_receive_memory(pool, control_receives, bytes, deadline);
  made.receives = make_control_receives(std::move(receives), bytes, self.parameters_.receive_depth);
  auto found = co_await find_receive_memory(pool, 1, rail::control_memory_bytes(), deadline);
  made.control_memory = std::move(found.front());
  made.parameters = self.parameters_;
  co_return made;
}

// Starts the link that was made for a rail. `of_peer` has the attempt's epoch, and the peer's fabric and landing place.
void joining::begin(std::size_t number, transport& way, const join& of_peer, rail_start&& how) {
  how.fabric = way.name();
  how.is_far = is_far(way);
  how.epoch = of_peer.epoch;
  how.peer_fabric = of_peer.fabric;
  how.parameters.landing = of_peer.landing;
  rail& which = owner_.rail_at(number);
  which.begin(std::move(how));
  places_[number].began_at = owner_.home().now();
  which.post_control_receives();
}

// ---- links that wait for the peer's first message ----

std::optional<time_point> joining::first_deadline() const noexcept {
  std::optional<time_point> first;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!owner_.rail_at(i).is_unopened()) continue;
    first = std::min(first.value_or(time_point::max()), later(places_[i].began_at, join_timeout));
  }
  return first;
}

// A cable may be pulled between the set-up of a link and the first message over it. The link's own time limit may be
// longer.
void joining::give_up_unopened() noexcept {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    rail& each = owner_.rail_at(i);
    if (each.is_unopened() && owner_.home().now() - places_[i].began_at >= join_timeout) {
      each.give_up("the peer has said nothing over this rail since it was set up");
    }
  }
}

}  // namespace weft::net::rails
