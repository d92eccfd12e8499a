// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/connection_end.hpp>
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/staging.hpp>
#include <weft/net/list.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace weft::net {

using mr::detail::copy_engine;
using mr::detail::copy_operation;
using mr::detail::owner_access;
using weft::detail::make_error;

namespace {

constexpr std::size_t slots = owner_message::slots;
constexpr std::size_t slot_bytes = owner_message::slot_bytes;

constexpr mr::usage of_own_slots = mr::usage::send | mr::usage::write_src | mr::usage::read_dst;

const char* words_for(owner_access status) noexcept {
  switch (status) {
    case owner_access::done:
      break;
    case owner_access::no_such_key:
      return "the peer's memory is not open to this connection, or no longer; the connection goes on";
    case owner_access::not_allowed:
      return "the peer's memory is not registered for that; the connection goes on";
    case owner_access::out_of_range:
      return "that is outside of the peer's memory; the connection goes on";
    case owner_access::device_failed:
      return "the peer's device did not copy, or its memory was freed while it was registered; the connection goes on";
    case owner_access::no_memory:
      return "the peer has no memory to copy through, or its device no memory windows; the connection goes on";
    case owner_access::closing:
      return "the peer closes the connection";
    case owner_access::not_written:
      return "the peer could not write its memory to the storage of the file; the connection goes on";
  }
  return "the peer refused";
}

error why_refused(owner_access status) noexcept {
  const char* const words = words_for(status);
  if (status == owner_access::closing) return make_error(errc::peer_closed, words);
  if (status == owner_access::not_written) return weft::detail::make_system_error(EIO, words);
  return make_error(status == owner_access::no_memory ? errc::no_memory : errc::remote_access, words);
}

// Throws if the memory was freed after its registration: another allocation may be at that address by now.
void check_unchanged(const mr::slice& memory) {
  const mr::memory_record& record = *memory.record();
  if (record.device->find(memory.bytes()).id == record.allocation) return;
  throw error(errc::invalid_argument,
              fmt::format("memory of {} was freed while it was registered", record.device->name()));
}

}  // namespace

// The memory of a transfer, or of one element of a list.
struct staging::element {
  std::span<const mr::slice> parts;
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  peer_names names;
};

// A part of an element: at most slot_bytes, or most_direct_bytes if it is direct.
struct staging::piece {
  transfer_kind kind = transfer_kind::write;
  bool peer_copies = false;
  bool direct = false;
  mr::slice local;
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  peer_names names;
};

// An operation in progress, with all that it needs if its transfer is destroyed meanwhile.
struct staging::job {
  transfer_kind kind = transfer_kind::write;
  bool peer_copies = false;  // the peer's process accesses its memory: transfer::is_behind_owner_
  bool direct = false;       // the peer copies, to or from this end's memory, which it has opened
  bool stopped = false;
  transfer* item = nullptr;  // null for a list, or after leave()
  list_operation* list = nullptr;
  std::vector<mr::slice> parts;
  mr::buffer owned;  // taken from the transfer by leave(), like `pin`
  mr::pin pin;
  mr::region_pin pinned;  // this end's region, while the peer has it open
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  std::uint64_t remote_bytes = 0;
  peer_names names;
  send_options how;
  std::optional<error> failure;

  [[nodiscard]] element whole() const noexcept {
    return {.parts = parts, .key = key, .address = address, .names = names};
  }
};

staging::staging(connection_state& state, sending& out, connection_end& end, operation_owner& owner)
    : state_(state), out_(out), end_(end), owner_(owner), messages_(state, owner), service_(state, messages_, end) {}

staging::~staging() { assert(!is_busy()); }

// ---- operations of this end ----

void staging::begin(transfer& item) noexcept try {
  auto what = std::make_unique<job>();
  what->kind = item.kind_;
  what->peer_copies = item.is_behind_owner_;
  what->item = &item;
  if (item.has_memory()) what->parts.assign(item.parts().begin(), item.parts().end());
  what->key = item.remote_key_;
  what->address = item.remote_address_;
  what->remote_bytes = item.remote_size_;
  if (item.names_.count != 0) what->names = item.names_;
  what->how = item.how_;
  begin(std::move(what));
} catch (const std::bad_alloc&) {
  out_.end_carrying();
  out_.carried_out(item, make_error(errc::no_memory));
}

void staging::begin(list_operation& all) noexcept try {
  auto what = std::make_unique<job>();
  what->kind = all.element_.kind_;
  what->peer_copies = all.element_.is_behind_owner_;
  what->list = &all;
  what->how.immediate = all.how_.immediate;
  begin(std::move(what));
} catch (const std::bad_alloc&) {
  out_.end_carrying();
  out_.carried_out(all, make_error(errc::no_memory));
}

void staging::begin(std::unique_ptr<job> what) noexcept {
  job_ = std::move(what);
  try {
    run_in_background(state_.home, carry_out(), "an operation that the peer carries out, or memory of a device");
  } catch (const std::bad_alloc&) {
    job_->failure = make_error(errc::no_memory);
    conclude(std::move(job_));
  }
}

void staging::leave(transfer& item) noexcept {
  job& mine = *job_;
  assert(mine.item == &item);
  mine.item = nullptr;
  mine.stopped = true;
  mine.owned = std::move(item.owned_);
  mine.pin = std::move(item.pin_);
}

void staging::stop(list_operation& all) noexcept {
  if (job_->list == &all) job_->stopped = true;
}

void staging::conclude(std::unique_ptr<job> done) noexcept {
  out_.end_carrying();
  if (done->stopped && !done->failure) done->failure = make_error(errc::canceled, "stopped");
  if (done->item != nullptr) out_.carried_out(*done->item, std::move(done->failure));
  if (done->list != nullptr) {
    const bool is_complete = done->list->done() == done->list->size();
    if (is_complete && done->stopped) done->failure.reset();
    out_.carried_out(*done->list, std::move(done->failure));
  }
  done.reset();
  out_.pump();
  end_.advance();
}

task<> staging::carry_out() {
  const inside_call inside(state_);
  job& mine = *job_;
  try {
    co_await carry_out(mine);
  } catch (const error& why) {
    if (!mine.failure) mine.failure = why;
  } catch (const std::bad_alloc&) {
    if (!mine.failure) mine.failure = make_error(errc::no_memory);
  }
  for (std::size_t i = 0; i != slots; ++i) {  // in the order in which they began
    lane& each = lanes_[(next_lane_ + i) % slots];
    if (!each.busy) continue;
    co_await each.ended.wait();
    note_end(mine, each);
  }
  if (mine.direct && !over_) {
    try {
      co_await end_share();
    } catch (const std::exception&) {  // if the connection has ended, so has the sharing
      if (!over_) state_.give_up(make_error(errc::no_memory, "end the sharing of device memory"));
    }
  }
  conclude(std::move(job_));
}

task<> staging::carry_out(job& mine) {
  co_await prepare(mine);
  if (mine.kind == transfer_kind::send) {
    co_await send_message(mine);
    co_return;
  }
  if (mine.kind == transfer_kind::flush) {
    co_await flush();
    co_return;
  }
  if (mine.kind == transfer_kind::persist) {
    co_await persist(mine);
    co_return;
  }
  co_await move_elements(mine);
  if (mine.how.immediate && !mine.failure && !mine.stopped) co_await notify(mine);
}

task<> staging::prepare(job& mine) {
  if (over_) throw *over_;
  co_await messages_.prepare();
  const std::span<const mr::slice> first =
      mine.list != nullptr ? std::span<const mr::slice>(&mine.list->element_.one_, 1) : mine.parts;
  const bool copies =
      std::any_of(first.begin(), first.end(), [&](const mr::slice& part) { return out_.is_beyond(part); });
  if (copies && mine.peer_copies) co_await try_to_share(mine);
  if (mine.direct) co_return;
  if (copies && !own_) own_ = co_await staging_memory::make(state_.device->domain(), slots * slot_bytes, of_own_slots);
  if (mine.peer_copies && mine.kind != transfer_kind::persist) co_await find_slots_of_peer();
}

// Shares memory with a peer process of this machine, for operations that are large enough to be worth it. Requires that
// all memory of each end is in one region, as in most lists, and that this end's region has
// registration_options::direct. Any other operation is copied through slots, and so is one whose sharing fails or is
// refused by the peer.
task<> staging::try_to_share(job& mine) {
  constexpr std::size_t least_bytes = std::size_t{1} << 20;
  if (!state_.properties().same_machine || mine.kind == transfer_kind::send) co_return;
  std::size_t bytes = 0;
  const mr::memory_record* whole = nullptr;
  bool is_one = true;
  const auto add = [&](const mr::slice& part) {
    bytes += part.size();
    if (whole == nullptr) whole = part.record();
    is_one = is_one && part.record() == whole;
  };
  for (const mr::slice& part : mine.parts) add(part);
  std::uint64_t key = mine.key;
  if (mine.list != nullptr) {
    for (std::size_t i = 0; i != mine.list->size(); ++i) {
      mine.list->load(i);
      const transfer& loaded = mine.list->element_;
      add(loaded.one_);
      if (i == 0) key = loaded.remote_key_;
      is_one = is_one && loaded.remote_key_ == key;  // other memory may be another device's
    }
  }
  if (bytes < least_bytes || !is_one || !whole->region->options.direct) co_return;
  try {
    const mr::slice all(whole->bytes, whole);
    check_unchanged(all);
    const mr::region_pin pinned(all);
    const std::shared_ptr<mr::memory_device> device = whole->region->device_life;
    const auto share = [&device, whole] { return device->share(whole->bytes); };
    owner_message offer{.what = owner_message::verb::share, .key = key, .shared_bytes = whole->bytes.size()};
    offer.shared = co_await weft::detail::offload_for_resources(share);
    co_await request(0, offer);
    mine.direct = true;
    mine.pinned = mr::region_pin(all);
  } catch (const error&) {
    if (over_) throw;
  }
}

task<> staging::end_share() { co_await request(0, {.what = owner_message::verb::unshare}); }

task<> staging::move_elements(job& mine) {
  const mr::memory_record* checked = nullptr;
  const std::size_t count = mine.list != nullptr ? mine.list->size() : 1;
  for (std::size_t i = 0; i != count && !mine.failure && !mine.stopped; ++i) {
    std::array<mr::slice, 1> single;
    element next = mine.whole();
    if (mine.list != nullptr) {
      mine.list->load(i);
      const transfer& loaded = mine.list->element_;
      single[0] = loaded.one_;
      next = {.parts = single, .key = loaded.remote_key_, .address = loaded.remote_address_, .names = {}};
      if (loaded.names_.count != 0) next.names = loaded.names_;
    }
    for (const mr::slice& part : next.parts) {
      if (part.record() == checked || part.kind() == mr::memory_kind::host) continue;
      check_unchanged(part);
      checked = part.record();
    }
    co_await move_element(mine, next);
  }
  for (std::size_t i = 0; i != slots; ++i) {
    lane& each = lanes_[(next_lane_ + i) % slots];
    if (!each.busy) continue;
    co_await each.ended.wait();
    note_end(mine, each);
  }
}

void staging::note_end(job& mine, lane& used) noexcept {
  used.busy = false;
  if (used.failure && !mine.failure) mine.failure = std::move(used.failure);
  used.failure.reset();
  if (used.ends_element && !mine.failure && mine.list != nullptr) ++mine.list->done_;
}

task<> staging::move_element(job& mine, const element& what) {
  piece next{.kind = mine.kind,
             .peer_copies = mine.peer_copies,
             .direct = mine.direct,
             .local = {},
             .key = what.key,
             .address = what.address,
             .names = what.names};
  const std::size_t most = mine.direct ? owner_message::most_direct_bytes : slot_bytes;
  std::size_t left = mr::detail::total_size(what.parts);
  for (const mr::slice& part : what.parts) {
    for (std::size_t at = 0; at != part.size() || left == 0;) {
      const std::size_t bytes = std::min(most, part.size() - at);
      const std::size_t slot = std::exchange(next_lane_, (next_lane_ + 1) % slots);
      lane& used = lanes_[slot];
      if (used.busy) {
        co_await used.ended.wait();
        note_end(mine, used);
      }
      if (mine.failure || mine.stopped) co_return;
      next.local = part.subslice(at, bytes);
      left -= bytes;
      used.ends_element = left == 0;
      used.ended.reset();
      run_in_background(state_.home, move(slot, next), "a piece of memory of a device");
      used.busy = true;
      at += bytes;
      next.address += bytes;
      for (std::size_t i = 0; i != next.names.count; ++i) next.names.of[i].address += bytes;
      if (left == 0) co_return;
    }
  }
}

task<> staging::move(std::size_t slot, piece what) {
  const inside_call inside(state_);
  lane& mine = lanes_[slot];
  try {
    const mr::region_pin pinned(what.local);
    if (what.local.size() == 0) {
      // There is nothing to move; the element ends in its turn.
    } else if (what.direct) {
      co_await request(slot, direct_request(what));
    } else if (what.kind == transfer_kind::write) {
      co_await write(slot, what);
    } else {
      co_await read(slot, what);
    }
  } catch (const error& why) {
    mine.failure = why;
  } catch (const std::bad_alloc&) {
    mine.failure = make_error(errc::no_memory);
  }
  mine.ended.set();
}

owner_message staging::direct_request(const piece& what) noexcept {
  const auto place = static_cast<std::uint64_t>(what.local.data() - what.local.record()->bytes.data());
  return {.what = what.kind == transfer_kind::write ? owner_message::verb::put : owner_message::verb::get,
          .direct = true,
          .bytes = static_cast<std::uint32_t>(what.local.size()),
          .key = what.key,
          .offset = what.address,
          .shared_offset = place};
}

task<> staging::write(std::size_t slot, const piece& what) {
  const std::size_t bytes = what.local.size();
  mr::slice source = what.local;
  if (out_.is_beyond(what.local)) {
    source = own_.slice(slot * slot_bytes, bytes);
    co_await copy_out(what.local, own_, source.bytes());
  }
  transfer there(&owner_, transfer_kind::write);
  there.become_internal(source);
  if (!what.peer_copies) {
    there.aim_at(what.key, what.address, bytes, what.names);
    co_await there;
    co_return;
  }
  there.aim(slots_of_peer_->slice(slot * slot_bytes, bytes));
  co_await there;
  co_await request(slot, {.what = owner_message::verb::put,
                          .bytes = static_cast<std::uint32_t>(bytes),
                          .key = what.key,
                          .offset = what.address});
}

task<> staging::read(std::size_t slot, const piece& what) {
  const std::size_t bytes = what.local.size();
  const bool copies = out_.is_beyond(what.local);
  const mr::slice target = copies ? own_.slice(slot * slot_bytes, bytes) : what.local;
  transfer here(&owner_, transfer_kind::read);
  here.become_internal(target);
  if (what.peer_copies) {
    co_await request(slot, {.what = owner_message::verb::get,
                            .bytes = static_cast<std::uint32_t>(bytes),
                            .key = what.key,
                            .offset = what.address});
    here.aim(slots_of_peer_->slice(slot * slot_bytes, bytes));
  } else {
    here.aim_at(what.key, what.address, bytes, what.names);
  }
  co_await here;
  if (copies) co_await copy_in(target.bytes(), what.local);
}

// Copies all parts of a message, including those in host memory, into one piece of host memory, and sends the message
// from there.
task<> staging::send_message(job& mine) {
  const std::size_t bytes = mr::detail::total_size(mine.parts);
  staging_memory larger;
  if (bytes > slots * slot_bytes) {
    constexpr std::size_t page = 4096;
    larger = co_await staging_memory::make(state_.device->domain(), (bytes + page - 1) / page * page, of_own_slots);
  }
  staging_memory& through = larger ? larger : own_;
  const mr::slice whole = through.slice(0, bytes);
  std::span<std::byte> room = whole.bytes();
  for (const mr::slice& part : mine.parts) {
    if (part.size() == 0) continue;
    if (part.kind() == mr::memory_kind::host) {
      std::memcpy(room.data(), part.data(), part.size());
    } else {
      check_unchanged(part);
      co_await copy_out(part, through, room.first(part.size()));
    }
    room = room.subspan(part.size());
  }
  transfer say(&owner_, transfer_kind::send);
  say.become_internal(whole);
  say.how_ = mine.how;
  co_await say;
}

// The peer's answer confirms earlier writes, because they are in place before the peer reads the request.
task<> staging::flush() {
  co_await request(
      0, {.what = owner_message::verb::get, .flushes = true, .bytes = 1, .key = job_->key, .offset = job_->address});
}

// As in flush(), earlier writes are in place before the peer reads the request.
task<> staging::persist(job& mine) {
  for (std::uint64_t done = 0; done != mine.remote_bytes && !mine.stopped;) {
    const std::uint64_t bytes = std::min<std::uint64_t>(mine.remote_bytes - done, owner_message::most_persistent_bytes);
    co_await request(0, {.what = owner_message::verb::persist,
                         .bytes = static_cast<std::uint32_t>(bytes),
                         .key = mine.key,
                         .offset = mine.address + done});
    done += bytes;
  }
}

// Sends the immediate data with an empty write. When the empty write arrives, the operation's bytes are in place: the
// peer has confirmed their copies, or the empty write follows them over the link.
task<> staging::notify(job& mine) {
  transfer word(&owner_, transfer_kind::write);
  word.become_internal(messages_.nothing());
  word.how_ = mine.how;
  if (mine.peer_copies) {
    co_await find_slots_of_peer();  // a direct operation has done without
    word.aim(slots_of_peer_->slice(0, 0));
  } else if (mine.list != nullptr) {
    const transfer& last = mine.list->element_;
    word.aim_at(last.remote_key_, last.remote_address_, 0, last.names_.count != 0 ? last.names_ : peer_names());
  } else {
    word.aim_at(mine.key, mine.address, 0, mine.names);
  }
  co_await word;
}

// ---- memory ----

task<> staging::find_slots_of_peer() {
  if (slots_of_peer_) co_return;
  found_slots_of_peer_.reset();
  no_slots_of_peer_.reset();
  asks_for_slots_ = true;
  co_await messages_.post(owner_messages::ask_place, {.what = owner_message::verb::ask});
  co_await found_slots_of_peer_.wait();
  if (!slots_of_peer_) throw *no_slots_of_peer_;
}

task<> staging::copy_out(mr::slice from, staging_memory& through, std::span<std::byte> to) {
  const std::shared_ptr<mr::memory_device> device = from.record()->region->device_life;
  copy_engine& engine = *co_await copy_engine::of(device);
  const copy_engine::user polled(engine);
  co_await through.pin_for(device);
  copy_operation copy(engine.out(), to.data(), from.data(), to.size());
  co_await copy;
}

task<> staging::copy_in(std::span<const std::byte> from, mr::slice to) {
  const std::shared_ptr<mr::memory_device> device = to.record()->region->device_life;
  copy_engine& engine = *co_await copy_engine::of(device);
  const copy_engine::user polled(engine);
  co_await own_.pin_for(device);
  copy_operation copy(engine.in(), to.data(), from.data(), from.size());
  co_await copy;
}

// ---- messages ----

task<> staging::request(std::size_t slot, owner_message what) {
  if (over_) throw *over_;
  lane& mine = lanes_[slot];
  what.slot = static_cast<std::uint8_t>(slot);
  mine.answered.reset();
  mine.answer.reset();
  mine.asks = true;
  co_await messages_.post(owner_messages::request_place(slot), what);
  co_await mine.answered.wait();
  if (mine.answer) throw *mine.answer;
}

bool staging::heard(const owner_message& said) noexcept {
  using enum owner_message::verb;
  if (said.what == persist ? !state_.properties().persistent_flush
                           : said.what != answer && !state_.properties().device_memory) {
    return false;
  }
  switch (said.what) {
    case memory:
      if (!std::exchange(asks_for_slots_, false)) return false;
      if (said.region && is_in_reach(*said.region)) slots_of_peer_ = said.region;
      if (!slots_of_peer_) no_slots_of_peer_ = make_error(errc::no_memory, words_for(owner_access::no_memory));
      found_slots_of_peer_.set();
      return true;
    case answer:
      return answered(said);
    case ask:
      return service_.lend();
    case put:
    case get:
    case share:
    case unshare:
    case persist:
      return service_.asked(said);
  }
  return false;
}

// Whether the link itself reads and writes that memory. A peer that names other memory would have this end carry out
// its own requests by asking again.
bool staging::is_in_reach(const mr::remote_region& memory) const noexcept {
  constexpr mr::usage needed = mr::usage::write_dst | mr::usage::read_src;
  const mr::remote_slice whole = memory;
  peer_names names;
  std::optional<error> why_not;
  if (!whole.allows(needed) || whole.on(mr::place_behind_owner) != nullptr) return false;
  return owner_.find(whole, names, why_not).has_value() && !why_not;
}

bool staging::answered(const owner_message& said) noexcept {
  lane& mine = lanes_[said.slot];
  if (!std::exchange(mine.asks, false)) return false;
  if (said.status != owner_access::done) mine.answer = why_refused(said.status);
  mine.answered.set();
  return true;
}

void staging::give_up(const error& why) noexcept {
  if (over_) return;
  over_ = why;
  for (lane& each : lanes_) {
    if (!std::exchange(each.asks, false)) continue;
    each.answer = why;
    each.answered.set();
  }
  if (!std::exchange(asks_for_slots_, false)) return;
  no_slots_of_peer_ = why;
  found_slots_of_peer_.set();
}

}  // namespace weft::net
