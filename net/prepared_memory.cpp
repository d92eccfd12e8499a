// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>
#include <weft/net/connection/connection_core.hpp>
#include <weft/net/connection/device_state.hpp>
#include <weft/net/prepared_memory.hpp>

#include <atomic>
#include <new>
#include <optional>
#include <span>

namespace weft::net {

prepared_memory::prepared_memory(connection_core* core, const mr::remote_slice& where) noexcept
    : core_(core), where_(where) {
  if (core == nullptr) return;
  keys_ = core->keys();
  connection_state& state = core->state();
  gate_ = state.link().gate();
  if (gate_ == nullptr) return;
  home_ = &state.home;
  domain_ = &state.device->domain();
  fabric_ = state.carrier.fabric_number;
  if (executor_core::current() == home_) look_up();
}

connection_core* prepared_memory::core() const noexcept {
  return keys_ != nullptr && !keys_->abandoned() ? core_ : nullptr;
}

void prepared_memory::look_up() noexcept {
  version_ = gate_->version;
  connection_state& state = core_->state();
  std::optional<error> unused;
  const auto named = state.carrier.find(where_, unused);
  if (!named) return;
  place_ = state.link().find_direct(named->key, named->address, where_.size());
  place_.may_read = place_.may_read && where_.allows(mr::usage::read_src);
  place_.may_write = place_.may_write && where_.allows(mr::usage::write_dst);
}

// Executes the operation if the memory can be used directly and without waiting. Leaves any other operation to post(),
// even if it will be refused. Flattened, because all of it is short.
[[gnu::flatten]] taken prepared_transfer::take_now(weft::detail::promise_base& waiter) noexcept {
  prepared_memory& there = where_;
  if (state_ != state::idle) return taken::no;
  if (executor_core::current() != there.home_ || there.keys_->abandoned()) return taken::no;
  sending& out = there.core_->out();
  connection_state& here = there.core_->state();
  const direct_gate& gate = *there.gate_;
  // mutant: use prepared memory ahead of
  if (gate.is_behind || !out.is_clear() || here.has_ended()) return taken::no;
  if (!weft::detail::may_end_at_once(waiter)) return taken::no;
  if (there.version_ != gate.version) [[unlikely]]
    there.look_up();  // mutant: use a place that has been given back
  const mr::slice local = held_ != nullptr ? held_->slice() : borrowed_;
  const bool reads = kind_ == transfer_kind::read;
  if (!may_use(local, reads)) return taken::no;
  const direct_place& place = there.place_;
  // mutant: use prepared memory beyond
  if (offset_ > place.bytes || local.size() > place.bytes - offset_) return taken::no;
  const loan_visit inside(*place.turn, *place.lent);
  if (!inside.is_open()) return taken::no;  // mutant: use prepared memory after
  const std::span<std::byte> memory(place.first + offset_, local.size());
  reads ? mr::load_shared(memory, local.bytes()) : mr::store_shared(memory, local.bytes());
  // Orders this access before later ones, as direct_requests does.
  std::atomic_thread_fence(std::memory_order_acq_rel);
  live_statistics::operations& counted = reads ? here.statistics.reads : here.statistics.writes;
  counted.posted.add(1);
  counted.bytes.add(memory.size());
  state_ = state::ended;
  return out.order().go_on(waiter);
}

bool prepared_transfer::may_use(const mr::slice& local, bool reads) const noexcept {
  const prepared_memory& there = where_;
  const mr::memory_record* const record = local.record();
  if (record == nullptr || record->home != there.domain_ || record->device != nullptr) return false;
  const bool is_open = reads ? there.place_.may_read : there.place_.may_write;
  if (!is_open || !mr::includes(record->usage, reads ? mr::usage::read_dst : mr::usage::write_src)) return false;
  if (record->in(there.fabric_).handle != nullptr && there.domain_->may_shrink(*record)) return false;
  return held_ == nullptr || (reads ? mr::pin::may_write(*held_) : mr::pin::may_share(*held_));
}

[[gnu::noinline]] transfer& prepared_transfer::post() {
  if (state_ != state::idle) throw error(errc::invalid_argument, "an operation on prepared memory was awaited before");
  transfer& item = *::new (static_cast<void*>(&posted_)) transfer(where_.core(), kind_);
  state_ = state::posted;
  item.use(held_ != nullptr ? sink(*held_) : sink(borrowed_));
  item.aim(where_.where_.slice(offset_, item.bytes()));
  return item;
}

}  // namespace weft::net
