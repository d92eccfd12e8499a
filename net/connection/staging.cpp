// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/background.hpp>
#include <weft/net/connection/connection_end.hpp>
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/exposures.hpp>
#include <weft/net/connection/sending.hpp>
#include <weft/net/connection/staging.hpp>
#include <weft/net/list.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <utility>

namespace weft::net {

using mr::detail::copy_engine;
using mr::detail::copy_operation;
using mr::detail::device_access;
using mr::detail::device_key_use;
using mr::detail::device_keys;
using weft::detail::make_error;

namespace {

constexpr std::size_t slots = device_message::slots;
constexpr std::size_t slot_bytes = device_message::slot_bytes;

// Places of this end's messages.
constexpr std::size_t message_room = 256;
constexpr std::size_t ask_place = 2 * slots;
constexpr std::size_t memory_place = 2 * slots + 1;
constexpr std::size_t answer_place(std::size_t slot) noexcept { return slots + slot; }
constexpr std::size_t message_bytes = 8192;
static_assert(device_message::max_bytes <= message_room && (memory_place + 1) * message_room <= message_bytes);

// How long to wait for a full pool. The connection does not end before that is over.
constexpr std::chrono::milliseconds patience_for_pool{1000};

constexpr mr::usage of_messages = mr::usage::send | mr::usage::write_src;
constexpr mr::usage of_own_slots = mr::usage::send | mr::usage::write_src | mr::usage::read_dst;
constexpr mr::usage of_lent_slots = mr::usage::write_dst | mr::usage::read_src;

const char* words_for(device_access status) noexcept {
  switch (status) {
    case device_access::done:
      break;
    case device_access::no_such_key:
      return "the peer's memory is not open to this connection, or no longer; the connection goes on";
    case device_access::not_allowed:
      return "the peer's memory is not registered for that; the connection goes on";
    case device_access::out_of_range:
      return "that is outside of the peer's memory; the connection goes on";
    case device_access::device_failed:
      return "the peer's device did not copy, or its memory was freed while it was registered; the connection goes on";
    case device_access::no_memory:
      return "the peer has no memory to copy through; the connection goes on";
    case device_access::closing:
      return "the peer closes the connection";
  }
  return "the peer refused";
}

errc code_of(device_access status) noexcept {
  if (status == device_access::closing) return errc::peer_closed;
  return status == device_access::no_memory ? errc::no_memory : errc::remote_access;
}

void report_no_slots(const std::exception& why) noexcept try {
  const std::string text = fmt::format("staging memory for a peer's access to device memory: {}", why.what());
  send_report({.kind = report_kind::warning, .text = text});
} catch (const std::bad_alloc&) {
  send_report({.kind = report_kind::warning, .text = "out of staging memory for a peer's access to device memory"});
}

// Freed memory may belong to another allocation by now, at the same address.
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

// A part of an element, at most as large as a slot.
struct staging::piece {
  transfer_kind kind = transfer_kind::write;
  bool peer_copies = false;
  bool direct = false;
  mr::slice local;
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  peer_names names;
};

// An operation in progress, with what it needs if its transfer is destroyed meanwhile.
struct staging::job {
  transfer_kind kind = transfer_kind::write;
  bool peer_copies = false;  // the fabric cannot reach the peer's memory
  bool direct = false;       // the peer has opened this end's memory
  bool stopped = false;
  transfer* item = nullptr;  // null for a list, or after the transfer is gone
  list_operation* list = nullptr;
  std::vector<mr::slice> parts;
  mr::buffer owned;  // of a transfer that is gone
  mr::pin pin;
  mr::region_pin pinned;  // the memory that the peer has opened
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

// Memory of the peer's device that is open here. Copies keep it open, whatever the peer says meanwhile. It is closed on
// a worker, because drivers block for that.
class staging::shared_memory final : public mr::detail::background_job {
 public:
  shared_memory(std::shared_ptr<mr::memory_device> device, const mr::device_share& what, std::size_t bytes)
      : device_(std::move(device)), memory_(device_->open_share(what, bytes), bytes) {}
  ~shared_memory() override { close(); }
  void close() noexcept {
    if (!memory_.empty()) device_->close_share(std::exchange(memory_, {}).data());
  }
  void run() noexcept override {}  // a worker only has to delete it

  [[nodiscard]] const mr::memory_device* device() const noexcept { return device_.get(); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return memory_; }

 private:
  std::shared_ptr<mr::memory_device> device_;
  std::span<std::byte> memory_;
};

staging::staging(connection_state& state, sending& out, connection_end& end, operation_owner& owner)
    : state_(state), out_(out), end_(end), owner_(owner) {}

void staging::closed_on_worker::operator()(shared_memory* last) const noexcept {
  mr::detail::run_on_worker(std::unique_ptr<mr::detail::background_job>(last));
}

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
  what->how.solicited = all.how_.solicited;
  begin(std::move(what));
} catch (const std::bad_alloc&) {
  out_.end_carrying();
  out_.carried_out(all, make_error(errc::no_memory));
}

void staging::begin(std::unique_ptr<job> what) noexcept {
  job_ = std::move(what);
  try {
    run_in_background(state_.home, carry_out(), "memory of a device");
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
    } catch (const std::exception&) {  // the connection has ended, and the sharing with it
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
  co_await move_elements(mine);
  if (mine.how.immediate && !mine.failure && !mine.stopped) co_await notify(mine);
}

task<> staging::prepare(job& mine) {
  if (over_) throw *over_;
  co_await find_messages();
  const std::span<const mr::slice> first =
      mine.list != nullptr ? std::span<const mr::slice>(&mine.list->element_.one_, 1) : mine.parts;
  const bool copies =
      std::any_of(first.begin(), first.end(), [&](const mr::slice& part) { return out_.is_beyond(part); });
  if (copies && mine.peer_copies) co_await try_to_share(mine);
  if (mine.direct) co_return;
  if (copies && !own_) own_ = co_await staging_memory::make(state_.device->domain(), slots * slot_bytes, of_own_slots);
  if (mine.peer_copies) co_await find_slots_of_peer();
}

// Shares memory with a peer process of this machine, for operations that are large enough to be worth it. Requires that
// all memory is in one region, as in most lists; any other operation, or one that the peer refuses, is copied through
// slots.
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
      add(mine.list->element_.one_);
    }
    key = mine.list->element_.remote_key_;
  }
  if (bytes < least_bytes || !is_one || !whole->region->options.direct) co_return;
  try {
    const mr::slice all(whole->bytes, whole);
    check_unchanged(all);
    const mr::region_pin pinned(all);
    const std::shared_ptr<mr::memory_device> device = whole->region->device_life;
    const auto share = [&device, whole] { return device->share(whole->bytes); };
    device_message offer{.what = device_message::verb::share, .key = key, .shared_bytes = whole->bytes.size()};
    offer.shared = co_await weft::detail::offload_for_resources(share);
    co_await request(0, offer);
    mine.direct = true;
    mine.pinned = mr::region_pin(all);
  } catch (const error&) {
    if (over_) throw;
  }
}

task<> staging::end_share() { co_await request(0, {.what = device_message::verb::unshare}); }

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
  const std::size_t most = mine.direct ? device_message::most_direct_bytes : slot_bytes;
  std::size_t left = 0;
  for (const mr::slice& part : what.parts) left += part.size();
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

device_message staging::direct_request(const piece& what) noexcept {
  const auto place = static_cast<std::uint64_t>(what.local.data() - what.local.record()->bytes.data());
  return {.what = what.kind == transfer_kind::write ? device_message::verb::put : device_message::verb::get,
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
  co_await request(slot, {.what = device_message::verb::put,
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
    co_await request(slot, {.what = device_message::verb::get,
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

// Gathers all parts in host memory for the transport, including those that are in host memory already.
task<> staging::send_message(job& mine) {
  std::size_t bytes = 0;
  for (const mr::slice& part : mine.parts) bytes += part.size();
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

// All earlier operations have completed, and the peer's answer comes after them.
task<> staging::flush() {
  co_await request(
      0, {.what = device_message::verb::get, .flushes = true, .bytes = 1, .key = job_->key, .offset = job_->address});
}

// All bytes are in place: the peer has confirmed it, or this empty write follows them.
task<> staging::notify(job& mine) {
  transfer word(&owner_, transfer_kind::write);
  word.become_internal(messages_.slice(0, 0));
  word.how_ = mine.how;
  if (mine.peer_copies) {
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

task<> staging::find_messages() {
  while (!messages_) {
    if (std::exchange(finds_messages_, true)) {
      co_await found_messages_.wait();
      continue;
    }
    found_messages_.reset();
    const struct guard {
      staging& self;
      ~guard() {
        self.finds_messages_ = false;
        self.found_messages_.set();
      }
    } one_at_a_time{*this};
    messages_ = co_await staging_memory::make(state_.device->domain(), message_bytes, of_messages);
  }
}

task<> staging::find_slots_of_peer() {
  if (slots_of_peer_) co_return;
  found_slots_of_peer_.reset();
  no_slots_of_peer_.reset();
  asks_for_slots_ = true;
  co_await post(ask_place, {.what = device_message::verb::ask});
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

task<> staging::post(std::size_t place, device_message what) {
  const mr::slice room = messages_.slice(place * message_room, message_room);
  const std::size_t bytes = what.pack(room.bytes());
  transfer say(&owner_, transfer_kind::send);
  say.become_internal(room.subslice(0, bytes));
  say.role_ = transfer::role::device_message;
  co_await say;
}

task<> staging::request(std::size_t slot, device_message what) {
  if (over_) throw *over_;
  lane& mine = lanes_[slot];
  what.slot = static_cast<std::uint8_t>(slot);
  mine.answered.reset();
  mine.answer.reset();
  mine.asks = true;
  co_await post(slot, what);
  co_await mine.answered.wait();
  if (mine.answer) throw *mine.answer;
}

bool staging::heard(const device_message& said) noexcept {
  using enum device_message::verb;
  switch (said.what) {
    case ask:
      if (std::exchange(lends_, true)) return false;
      begin_to_serve(lend());
      return true;
    case memory:
      if (!std::exchange(asks_for_slots_, false)) return false;
      slots_of_peer_ = said.region;
      if (!slots_of_peer_) no_slots_of_peer_ = make_error(errc::no_memory, words_for(device_access::no_memory));
      found_slots_of_peer_.set();
      return true;
    case put:
    case get:
    case share:
    case unshare:
      return asked(said);
    case answer:
      return answered(said);
  }
  return false;
}

bool staging::answered(const device_message& said) noexcept {
  lane& mine = lanes_[said.slot];
  if (!std::exchange(mine.asks, false)) return false;
  if (said.status != device_access::done) mine.answer = make_error(code_of(said.status), words_for(said.status));
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

// ---- requests of the peer ----

void staging::begin_to_serve(task<> what) {
  ++serving_;
  try {
    run_in_background(state_.home, std::move(what), "memory of a device, for the peer");
  } catch (const std::bad_alloc&) {
    --serving_;
    state_.give_up(make_error(errc::no_memory, "serve the peer's request for memory of a device"));
  }
}

void staging::served() noexcept {
  --serving_;
  end_.advance();
}

bool staging::asked(const device_message& said) noexcept {
  service& mine = services_[said.slot];
  const bool needs_slot =
      !said.direct && (said.what == device_message::verb::put || said.what == device_message::verb::get);
  if (needs_slot && !has_lent_) return false;
  if (mine.runs) {
    if (!mine.has_answered || mine.next) return false;
    mine.next = said;
    return true;
  }
  mine.runs = true;
  begin_to_serve(serve(said));
  return true;
}

task<> staging::lend() {
  const inside_call inside(state_);
  device_message answer{.what = device_message::verb::memory};
  try {
    co_await find_messages();
    co_await lend_slots();
    answer.region = lent_.remote();
  } catch (const std::exception& why) {  // the peer is told that it failed, without the text
    if (!state_.has_ended()) report_no_slots(why);
  }
  try {
    if (!state_.is_silent() && messages_) co_await post(memory_place, answer);
  } catch (const std::exception&) {  // the connection has ended
  }
  served();
}

task<> staging::lend_slots() {
  constexpr std::size_t bytes = slots * slot_bytes;
  std::optional<error> why_not;
  try {
    lent_slots_ = co_await staging_memory::make(state_.device->domain(), bytes, mr::usage::bind_window);
    lent_ = co_await exposures::open(state_, state_.keys, lent_slots_.slice(), of_lent_slots, {});
  } catch (const error& why) {
    if (why.code() != errc::not_supported) throw;
    why_not = why;
  }
  if (why_not) {
    lent_slots_ = staging_memory();
    mr::buffer memory = co_await with_timeout(patience_for_pool, state_.device->pool().allocate(bytes));
    lent_ = co_await exposures::open(state_, state_.keys, std::move(memory), of_lent_slots, {});
  }
  has_lent_ = true;
}

std::span<std::byte> staging::lent_slot(std::size_t slot) const noexcept {
  const std::span<std::byte> all = lent_slots_ ? lent_slots_.bytes() : lent_.memory().bytes();
  return all.subspan(slot * slot_bytes, slot_bytes);
}

// Empty if the peer has not shared that memory with this device, or asks to copy beyond it.
std::span<std::byte> staging::part_of(const shared_memory* shared, const device_message& asked,
                                      const mr::memory_device& device) noexcept {
  if (shared == nullptr || shared->device() != &device) return {};
  const std::span<std::byte> all = shared->bytes();
  const bool is_within = asked.shared_offset <= all.size() && asked.bytes <= all.size() - asked.shared_offset;
  return is_within ? all.subspan(static_cast<std::size_t>(asked.shared_offset), asked.bytes) : std::span<std::byte>();
}

task<> staging::serve(device_message request) {
  const inside_call inside(state_);
  service& mine = services_[request.slot];
  for (std::optional<device_message> next = request; next; next = std::exchange(mine.next, std::nullopt)) {
    mine.has_answered = false;
    device_message answer{.what = device_message::verb::answer, .slot = request.slot};
    try {
      co_await find_messages();
      answer.status = co_await carry_out(*next);
      mine.has_answered = true;
      if (!state_.is_silent()) co_await post(answer_place(request.slot), answer);
    } catch (const std::exception&) {  // the connection has ended, or there is no memory for a coroutine
      if (!state_.has_ended()) state_.give_up(make_error(errc::no_memory, "answer the peer's request"));
    }
  }
  mine.runs = false;
  served();
}

task<device_access> staging::carry_out(const device_message& asked) {
  if (asked.what == device_message::verb::unshare) {
    co_await close_share();
    co_return device_access::done;
  }
  if (state_.closing) co_return device_access::closing;
  if (asked.what == device_message::verb::share) co_return co_await open_share(asked);
  co_return co_await copy_for_peer(asked);
}

// Only for a peer process of this machine, and for memory whose owner has chosen it, because a peer that frees memory
// it has shared may damage this end's use of the device.
task<device_access> staging::open_share(const device_message& asked) {
  if (!state_.properties().same_machine || asked.shared_bytes == 0) co_return device_access::not_allowed;
  const std::shared_ptr<mr::memory_device> device = device_keys::of_process().device_of(asked.key, true);
  if (device == nullptr) co_return device_access::not_allowed;
  co_await close_share();
  try {
    const auto open = [&] { return std::make_unique<shared_memory>(device, asked.shared, asked.shared_bytes); };
    std::unique_ptr<shared_memory> opened = co_await weft::detail::offload_for_resources(open);
    shared_ = std::shared_ptr<shared_memory>(opened.release(), closed_on_worker());
  } catch (const error&) {
    co_return device_access::device_failed;
  }
  co_return device_access::done;
}

// A peer that still has copies in progress breaks the rules: the last copy closes the memory.
task<> staging::close_share() {
  const std::shared_ptr<shared_memory> gone = std::move(shared_);
  if (gone.use_count() != 1) co_return;
  const auto close = [&gone]() noexcept { gone->close(); };
  co_await weft::detail::offload_for_resources(close);
}

task<device_access> staging::copy_for_peer(const device_message& asked) {
  const bool puts = asked.what == device_message::verb::put;
  const mr::usage read_for = asked.flushes ? mr::usage::flush_visibility : mr::usage::read_src;
  device_keys& keys = device_keys::of_process();
  const std::shared_ptr<mr::memory_device> device = keys.device_of(asked.key);
  if (device == nullptr) co_return device_access::no_such_key;
  try {
    copy_engine& engine = *co_await copy_engine::of(device);
    const copy_engine::user polled(engine);
    if (lent_slots_ && !asked.direct) co_await lent_slots_.pin_for(device);
    const std::shared_ptr<shared_memory> shared = asked.direct ? shared_ : nullptr;
    const std::span<std::byte> other = asked.direct ? part_of(shared.get(), asked, *device) : lent_slot(asked.slot);
    if (other.empty()) co_return device_access::not_allowed;
    std::byte* const slot = other.data();
    device_key_use use;
    const device_access status = keys.begin({.key = asked.key,
                                             .offset = asked.offset,
                                             .bytes = asked.bytes,
                                             .purpose = puts ? mr::usage::write_dst : read_for,
                                             .home = &state_.device->domain(),
                                             .connection = state_.number()},
                                            use);
    if (status != device_access::done) co_return status;
    if (device->find(use.memory()).id != use.record().allocation) co_return device_access::device_failed;
    std::byte* const there = use.memory().data();
    // No suspension from here on: closing the key relies on the copy having been given to the device.
    copy_operation copy(puts && !asked.direct ? engine.in() : engine.out(), puts ? there : slot, puts ? slot : there,
                        asked.bytes, std::move(use));
    co_await copy;
  } catch (const error&) {
    co_return device_access::device_failed;
  }
  co_return device_access::done;
}

}  // namespace weft::net
