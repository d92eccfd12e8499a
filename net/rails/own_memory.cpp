// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/own_memory.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/sleep.hpp>
#include <weft/runtime/system/random.hpp>

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

namespace weft::net::rails {

// ---- exposing ----

// A place in all_, reserved before a rail opens the first key, because nothing may fail once the peer can use the
// memory. fill() chooses the index once the key is open, so that a task that fails before leaves no gap in all_.
class own_memory::slot_claim {
 public:
  explicit slot_claim(own_memory& of) : of_(of) {
    const std::size_t needed = of.all_.size() + of.claimed_ + 1;
    if (needed > of.all_.capacity()) of.all_.reserve(std::max(needed, 2 * of.all_.capacity()));
    of.free_slots_.reserve(of.all_.capacity());
    ++of.claimed_;
  }
  slot_claim(const slot_claim&) = delete;
  slot_claim& operator=(const slot_claim&) = delete;
  ~slot_claim() { --of_.claimed_; }

  [[nodiscard]] std::size_t fill(std::unique_ptr<exposed_memory> what) noexcept {
    auto& all = of_.all_;
    if (of_.free_slots_.empty()) {
      all.push_back(std::move(what));
      return all.size() - 1;
    }
    const std::uint32_t slot = of_.free_slots_.back();
    of_.free_slots_.pop_back();
    all[slot] = std::move(what);
    return slot;
  }

 private:
  own_memory& of_;
};

task<exposed_place> own_memory::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) {
  if (owner_.has_ended()) throw error(errc::closed, "expose a buffer");
  const link_tasks::at_work staying(tasks_);
  const std::uint64_t drawn = weft::detail::draw<std::uint32_t>(owner_.home().calls()) & 0x7fff'ffffu;
  withdrawn_.reserve();
  auto made = std::make_unique<exposed_memory>(*this, memory, uses, gate);
  slot_claim claim(*this);
  weft::detail::promise_base& promise = co_await weft::detail::current_promise();
  const stop_token stop = promise.get_stop_token();
  std::optional<std::size_t> opened = co_await open_first_key(*made);
  while (!opened) {
    // The rails may have ended because of the stop.
    if (!owner_.takes_rails()) throw error(stop.stop_requested() ? errc::canceled : errc::closed, "expose a buffer");
    if (outage_.is_on()) {
      co_await outage_.wait_for_rail();
    } else {  // a rail has come or gone meanwhile
      co_await yield();
    }
    opened = co_await open_first_key(*made);
  }
  const std::size_t first = *opened;
  exposed_memory& item = *made;
  item.handle = handle_bit | drawn << 32 | claim.fill(std::move(made));
  announce(item, first);
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    if (i != first && owner_.rail_at(i).is_open()) rail_came(i);
  }
  co_return exposed_place(item.handle, 0);
}

// Opens a key on the first rail that gives a key, and yields that rail's number; empty if all rails are lost. If no
// rail gives a key, but one that is up has refused, throws the last such refusal.
task<std::optional<std::size_t>> own_memory::open_first_key(exposed_memory& what) {
  std::exception_ptr failure;
  const rail* const used = host_.rail_of_accesses();
  std::size_t on = used != nullptr ? used->number() : 0;
  for (std::size_t i = 0; i < owner_.rail_count(); ++i, on = (on + 1) % owner_.rail_count()) {
    try {
      co_await open_key(what, on);
    } catch (...) {
      if (owner_.rail_at(on).phase() == rail::state::up) failure = std::current_exception();
    }
    if (what.keys[on].is_there) co_return on;
  }
  if (failure != nullptr) std::rethrow_exception(failure);
  co_return std::nullopt;
}

// Opens a key on one rail, unless the rail is not up, or has given a key already.
task<> own_memory::open_key(exposed_memory& what, std::size_t on) {
  rail& way = owner_.rail_at(on);
  struct inside {
    explicit inside(rail& of) noexcept : of_(of) { of.enter_call(); }
    inside(const inside&) = delete;
    inside& operator=(const inside&) = delete;
    ~inside() { of_.leave_call(); }

   private:
    rail& of_;
  };
  const inside call(way);
  const flag_while opening(what.opening[on]);
  while (way.phase() == rail::state::up && !what.keys[on].is_there) {
    const std::uint32_t epoch = way.epoch();
    std::optional<exposed_place> opened;
    try {
      opened = co_await way.carrier()->expose(what.memory, what.purpose, what.opened_by);
    } catch (const error&) {
      if (way.epoch() == epoch) throw;
    }
    // A link that has ended has shut its keys itself, and the rail may have its next link already.
    if (!opened || way.phase() == rail::state::absent || way.epoch() != epoch) continue;
    what.keys[on] = {.is_there = true, .epoch = epoch, .key = opened->key, .address = opened->address};
  }
}

// ---- telling the peer ----

void own_memory::announce(const exposed_memory& what, std::size_t on) noexcept {
  const rail_key& its = what.keys[on];
  rail* const over = owner_.control_rail();
  if (!its.is_there || over == nullptr) return;
  over->send({.kind = control_kind::exposed,
              .rail = static_cast<std::uint8_t>(on),
              .epoch = its.epoch,
              .number = what.handle,
              .key = its.key,
              .address = its.address});
}

void own_memory::announce_all() noexcept {
  for (const auto& each : all_) {
    if (each == nullptr || each->handle == 0 || !each->is_open()) continue;
    for (std::size_t i = 0; i < owner_.rail_count(); ++i) announce(*each, i);
  }
}

void own_memory::tell_withdrawn(rail& over, std::uint64_t handle, bool at_deadline) noexcept {
  over.send({.kind = control_kind::withdrawn, .at_deadline = at_deadline, .number = handle});
}

void own_memory::asked(const rail& over, const control& said) noexcept {
  questions_[over.number()] = {.number = said.number, .handle = said.key, .epoch = over.epoch()};
  answer_questions();
}

// Answers all questions, unless a task is asking a rail for keys. Drops questions that came over a rail's earlier link,
// because the peer asks again.
void own_memory::answer_questions() noexcept {
  if (naming_ != 0) return;
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    const std::optional<question> each = std::exchange(questions_[i], std::nullopt);
    rail& over = owner_.rail_at(i);
    if (!each || over.epoch() != each->epoch) continue;
    const withdrawn_memory::item* const gone = withdrawn_.find(each->handle);
    if (gone != nullptr) tell_withdrawn(over, gone->handle, gone->at_deadline);
    over.send({.kind = control_kind::confirmed, .number = each->number});
  }
}

// ---- rails that come and go ----

// Held by a task that asks a rail for keys, which rail_came() has counted in naming_. At the end of the last such task,
// answers the questions.
class own_memory::naming {
 public:
  explicit naming(own_memory& of) noexcept : of_(of) {}
  naming(const naming&) = delete;
  naming& operator=(const naming&) = delete;
  ~naming() {
    const rail_owner::turn outer(of_.owner_);
    --of_.naming_;
    of_.answer_questions();
  }

 private:
  own_memory& of_;
};

void own_memory::rail_came(std::size_t number) noexcept {
  ++naming_;
  tasks_.begin([&] { return expose_over(*this, number); }, "expose memory over a rail");
}

task<> own_memory::expose_over(own_memory& self, std::size_t number) {
  const naming begun(self);
  for (std::size_t i = 0; i < self.all_.size() && !self.owner_.has_ended(); ++i) {
    exposed_memory* const item = self.all_[i].get();
    if (item == nullptr || item->handle == 0 || !item->is_open()) continue;
    if (item->opening[number] || item->keys[number].is_there) continue;
    try {
      co_await self.open_key(*item, number);
    } catch (const std::exception&) {  // refused or out of memory: the peer does not reach it over this rail
    }
    if (item->is_open()) {
      self.announce(*item, number);
      continue;
    }
    // The memory was taken back or given back meanwhile.
    const rail_owner::turn outer(self.owner_);
    rail& way = self.owner_.rail_at(number);
    if (item->keys[number].is_there && way.carrier() != nullptr) item->revoke(number, *way.carrier());
    self.free_if_over(*item);
    self.host_.keys_closed();
  }
}

void own_memory::rail_closed(std::size_t number) noexcept {
  for (const auto& each : all_) {
    if (each != nullptr) each->keys[number].is_there = false;  // mutant: keep the key of a rail
  }
}

// ---- taking back ----

void own_memory::revoke(std::uint64_t handle, revocation& who) noexcept {
  exposed_memory* const item = find(handle);
  assert(item != nullptr && item->owner == nullptr);
  item->owner = &who;
  // The peer announces it once more if the message that gives the memory back is lost with its rail.
  if (!item->has_come_back) withdrawn_.add(handle, item->keys, who.at_deadline());
  rail* const over = owner_.control_rail();
  if (!item->is_given_back && over != nullptr) tell_withdrawn(*over, handle, who.at_deadline());
  item->pin = who.take_pin();
  close_keys(*item);
  if (!item->is_being_opened()) item->pin = {};  // a rail whose worker has to revoke a key holds the region itself
  free_if_over(*item);
}

bool own_memory::give_back(std::uint64_t handle) noexcept {
  exposed_memory* const item = find(handle);
  if (item == nullptr) return withdrawn_.find(handle) != nullptr;  // it was taken back meanwhile
  item->is_given_back = true;
  close_keys(*item);
  return true;
}

void own_memory::came_back(std::uint64_t handle) noexcept {
  if (exposed_memory* const item = find(handle)) item->has_come_back = true;
}

bool own_memory::is_closing(std::uint64_t handle) noexcept {
  const exposed_memory* const item = find(handle);
  return item != nullptr && item->is_closing();
}

void own_memory::close_keys(exposed_memory& what) noexcept {
  ++what.revoking;  // keeps `what` from being freed inside the loop
  for (std::size_t i = 0; i < owner_.rail_count(); ++i) {
    rail& way = owner_.rail_at(i);
    if (what.keys[i].is_there && way.carrier() != nullptr) what.revoke(i, *way.carrier());  // mutant: revoke the key
  }
  --what.revoking;
}

void own_memory::key_revoked(exposed_memory& of) noexcept {
  const rail_owner::turn outer(owner_);
  free_if_over(of);
  host_.keys_closed();
}

exposed_memory* own_memory::find(std::uint64_t handle) noexcept {
  const std::size_t slot = handle & UINT32_MAX;
  if (!is_handle(handle) || slot >= all_.size()) return nullptr;
  exposed_memory* const found = all_[slot].get();
  return found != nullptr && found->handle == handle ? found : nullptr;
}

void own_memory::free_if_over(exposed_memory& what) noexcept {
  const auto slot = static_cast<std::uint32_t>(what.handle);
  if (!what.tell_if_over()) return;
  all_[slot].reset();
  free_slots_.push_back(slot);
}

}  // namespace weft::net::rails
