// SPDX-License-Identifier: Apache-2.0
#include "link.hpp"

#include <weft/mr/shared_words.hpp>
#include <weft/runtime/error.hpp>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

namespace weft::toy {
namespace {

using net::work_kind;
using net::work_request;
using net::work_status;
using weft::detail::make_error;

// What one turn of a link does, so that others have theirs.
constexpr std::uint64_t piece_bytes = std::uint64_t{256} << 10;
constexpr unsigned messages_a_turn = 64;
constexpr unsigned requests_a_turn = 64;
constexpr std::uint64_t largest_message = std::uint64_t{1} << 30;

end_id next_end() noexcept {
  static std::atomic<end_id> last{every_end};
  return ++last;
}

// Calls visit(span) for the parts of a request's memory from `from` on, as far as `bytes` go; what a send has of its
// own follows the segments.
template <class Visit>
void visit_parts(const work_request& work, std::uint64_t from, std::uint64_t bytes, const Visit& visit) {
  const auto part = [&](std::span<std::byte> memory) {
    const std::uint64_t skipped = std::min<std::uint64_t>(from, memory.size());
    from -= skipped;
    memory = memory.subspan(skipped);
    memory = memory.first(std::min<std::uint64_t>(bytes, memory.size()));
    bytes -= memory.size();
    if (!memory.empty()) visit(memory);
  };
  for (const mr::slice& segment : work.segments) part(segment.bytes());
  part(work.own);
}

}  // namespace

// ---- what the ends see of each other ----

end::end(std::shared_ptr<domain> where, std::size_t receives)
    : memory(std::move(where)), id(next_end()), posted(receives), arrived(receives) {}

void end::ring_bell() noexcept {
  bell_state expected = bell_state::idle;
  if (bell.compare_exchange_strong(expected, bell_state::rung)) home->submit(*link);
}

void end::break_off(errc code, std::string_view reason) noexcept {
  why = code;
  const std::size_t length = std::min(reason.size(), words.size() - 1);
  std::copy_n(reason.begin(), length, words.begin());
  state.store(progress::broken);
}

// ---- its life ----

link::link(std::shared_ptr<wire> both, std::size_t which, std::string peer)
    : home_(*executor_core::current()),
      wire_(std::move(both)),
      mine_(wire_->ends[which]),
      theirs_(wire_->ends[1 - which]),
      peer_(std::move(peer)) {
  capabilities_.checksum = true;  // memory has its own
  capabilities_.outgoing_reads = wire_->outgoing_reads[which];
  capabilities_.incoming_reads = wire_->outgoing_reads[1 - which];
  capabilities_.invalidate = true;
  capabilities_.explains_end = true;
  capabilities_.sees_writes = true;
  capabilities_.max_message_bytes = largest_message;
  capabilities_.write_completes_when_placed = true;
}

link::~link() {
  assert((closed_ || events_ == nullptr) && "a link was destroyed before it was closed");
  if (closed_) return;
  mine_.break_off(errc::peer_vanished, "the peer has gone");
  theirs_.ring_bell();
}

// What has come already is delivered in the next turn.
void link::start(net::link_events& events, const net::link_parameters& parameters) {
  counts_ = !parameters.agreed.cuts_writes();
  exposed_.reserve(8);
  events_ = &events;
  mine_.home = &home_;
  mine_.link = this;
  mine_.bell.store(end::bell_state::rung);
  home_.submit(*this);
}

bool link::furnish(work_request& work) noexcept {
  static_assert(alignof(posted_request) <= net::corner_alignment);
  ::new (work.corner) posted_request{&work, nullptr};
  return true;
}

void link::post(work_request& work) noexcept {
  const turn outer(*this);
  auto* const item = static_cast<posted_request*>(work.corner);
  item->next = nullptr;
  (last_ != nullptr ? last_->next : first_) = item;
  last_ = item;
}

void link::post_receive(net::receive_work& work) noexcept {
  const progress own = mine_.state.load();
  if (own == progress::broken || own == progress::closed) return events_->receive_flushed(work);
  mine_.posted.push(&work);
  if (mine_.starved.exchange(false)) theirs_.ring_bell();
}

void link::run_on_executor() noexcept {
  const turn outer(*this);
  mine_.bell.store(end::bell_state::idle);
  const progress other = theirs_.state.load();  // what it did before that can be seen from here on
  deliver();
  execute_requests();
  if (ended_) return;
  if (other == progress::broken) {
    broken_ = true;
    return end_because(make_error(theirs_.why, theirs_.words.data()), errc::peer_vanished, "the peer has gone as well");
  }
  if (other == progress::closed && first_ != nullptr) {
    broken_ = true;
    return end_because(make_error(errc::peer_vanished, "the peer has closed"), errc::peer_vanished, "");
  }
  if (other == progress::open || first_ != nullptr || mine_.arrived.front() != nullptr) return;
  ended_ = true;
  events_->ended(true, make_error(errc::peer_closed, "the peer closed the connection"));
}

void link::deliver() noexcept {
  for (unsigned count = 0; !ended_ && mine_.arrived.front() != nullptr; ++count) {
    if (count == messages_a_turn) return mine_.ring_bell();
    const message_in next = *mine_.arrived.front();
    mine_.arrived.pop();
    events_->received(*next.work, next.what);
  }
}

// ---- requests ----

void link::execute_requests() noexcept {
  for (unsigned count = 0; !ended_ && first_ != nullptr; ++count) {
    if (count == requests_a_turn) return mine_.ring_bell();
    switch (execute(*first_->work)) {
      case outcome::done:
        finish_oldest(work_status::done);
        break;
      case outcome::unfinished:
        return mine_.ring_bell();
      case outcome::waits:  // whoever changes that rings
        return;
      case outcome::refused:
        broken_ = true;
        end_because(make_error(errc::remote_access, "the peer has not opened that memory"), errc::protocol_error,
                    "an access of the peer's was refused");
        return finish_oldest(work_status::access_denied);
      case outcome::too_long:
        broken_ = true;
        return end_because(make_error(errc::connection_failed, "a message is larger than the peer's receive"),
                           errc::protocol_error, "a message is larger than its receive");
    }
  }
}

// Touches the other end's memory only between these two lines, and calls nobody there.
link::outcome link::execute(work_request& work) noexcept {
  mine_.inside.store(true);
  const progress other = theirs_.state.load();
  const outcome how = other == progress::open || other == progress::finished ? step(work) : outcome::waits;
  mine_.inside.store(false);
  if (how == outcome::done) theirs_.ring_bell();
  return how;
}

link::outcome link::step(work_request& work) noexcept {
  switch (work.kind) {
    case work_kind::send:
      return send(work);
    case work_kind::write:
      return write(work);
    case work_kind::read:
      return read(work);
    case work_kind::fetch_add:
    case work_kind::compare_swap:
    case work_kind::flush:  // without capabilities::device_flush there are none
      break;
  }
  return change(work);
}

// Says that it waits before it looks a last time.
net::receive_work* link::find_receive() noexcept {
  if (theirs_.posted.front() == nullptr) theirs_.starved.store(true);
  net::receive_work** const oldest = theirs_.posted.front();
  return oldest != nullptr ? *oldest : nullptr;
}

void link::give(net::receive_work& work, const net::arrival& what) noexcept {
  theirs_.posted.pop();
  theirs_.arrived.push({.work = &work, .what = what});
}

link::outcome link::send(work_request& work) noexcept {
  net::receive_work* const target = find_receive();
  if (target == nullptr) return outcome::waits;
  const std::uint64_t bytes = work.bytes();
  if (bytes > target->memory.size()) return outcome::too_long;
  const std::uint64_t piece = std::min(bytes - bytes_done_, piece_bytes);
  std::byte* out = target->memory.data() + bytes_done_;
  visit_parts(work, bytes_done_, piece, [&out](std::span<const std::byte> part) {
    std::memcpy(out, part.data(), part.size());
    out += part.size();
  });
  bytes_done_ += piece;
  if (bytes_done_ != bytes) return outcome::unfinished;
  if (work.invalidate) {
    const std::uint64_t key = *work.invalidate;
    if (key > UINT32_MAX || !theirs_.memory->keys().invalidate(static_cast<std::uint32_t>(key), theirs_.id))
      return outcome::refused;
  }
  give(*target, {.bytes = bytes, .invalidated_key = work.invalidate});
  return outcome::done;
}

link::outcome link::write(work_request& work) noexcept {
  net::receive_work* const target = work.immediate ? find_receive() : nullptr;
  if (work.immediate && target == nullptr) return outcome::waits;
  const outcome how = copy(work, work.bytes(), mr::access::remote_write);
  if (how == outcome::done && target != nullptr) give(*target, {.immediate = work.immediate});
  return how;
}

link::outcome link::read(work_request& work) noexcept { return copy(work, work.bytes(), mr::access::remote_read); }

// A piece of a write or read. All of it is checked anew with each piece, because the key may be gone meanwhile.
link::outcome link::copy(work_request& work, std::uint64_t bytes, mr::access right) noexcept {
  const key_table::access there(theirs_.memory->keys(), static_cast<std::uint32_t>(work.remote_key),
                                work.remote_address, bytes, right, theirs_.id);
  if (!there.granted()) return outcome::refused;
  const std::uint64_t piece = std::min(bytes - bytes_done_, piece_bytes);
  std::span<std::byte> shared = there.memory().subspan(bytes_done_, piece);
  visit_parts(work, bytes_done_, piece, [&](std::span<std::byte> part) {
    const std::span<std::byte> same = shared.first(part.size());
    right == mr::access::remote_read ? mr::load_shared(same, part) : mr::store_shared(same, part);
    shared = shared.subspan(part.size());
  });
  std::atomic_thread_fence(std::memory_order_acq_rel);
  bytes_done_ += piece;
  if (bytes_done_ != bytes) return outcome::unfinished;
  if (right == mr::access::remote_write && counts_) there.count();
  return outcome::done;
}

link::outcome link::change(work_request& work) noexcept {
  const key_table::access there(theirs_.memory->keys(), static_cast<std::uint32_t>(work.remote_key),
                                work.remote_address, sizeof(std::uint64_t), mr::access::remote_atomic, theirs_.id);
  const bool aligned = reinterpret_cast<std::uintptr_t>(there.memory().data()) % sizeof(std::uint64_t) == 0;
  if (!there.granted() || !aligned) return outcome::refused;
  const std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(there.memory().data()));
  std::uint64_t before = work.compare;
  bool changed = true;
  if (work.kind == work_kind::fetch_add) {
    before = word.fetch_add(work.operand);
  } else {
    changed = word.compare_exchange_strong(before, work.operand);
  }
  std::atomic_thread_fence(std::memory_order_acq_rel);
  if (changed && counts_) there.count();
  std::memcpy(work.own.data(), &before, sizeof before);
  return outcome::done;
}

// It may be posted again from inside the event.
void link::finish_oldest(work_status status) noexcept {
  posted_request* const item = first_;
  first_ = item->next;
  if (first_ == nullptr) last_ = nullptr;
  bytes_done_ = 0;
  events_->completed(*item->work, status);
}

// ---- the end ----

void link::shut_down() noexcept {
  const turn outer(*this);
  shutting_down_ = true;
}

void link::abort(std::string_view why) noexcept {
  if (closed_) return;
  const turn outer(*this);
  broken_ = true;
  end_because(make_error(errc::closed, why), errc::peer_vanished, "the peer has broken the connection off");
}

void link::refuse(violation, std::string_view why) noexcept {
  if (closed_) return;
  const turn outer(*this);
  broken_ = true;
  end_because(make_error(errc::protocol_error, why), errc::connection_failed, why);
}

void link::end_because(const error& why, errc for_peer, std::string_view words_for_peer) noexcept {
  if (std::exchange(ended_, true)) return;
  mine_.break_off(for_peer, words_for_peer);
  theirs_.ring_bell();
  events_->ended(false, why);
}

// What has become of the end, once nothing of this link is under way.
void link::settle() noexcept {
  if (closed_ || events_ == nullptr) return;
  ++depth_;
  while (ended_ && first_ != nullptr) finish_oldest(work_status::flushed);
  look_for_the_end();
  --depth_;
  if (closed_) events_->closed();
}

void link::look_for_the_end() noexcept {
  if (shutting_down_ && first_ == nullptr && mine_.state.load() == progress::open) {
    mine_.state.store(progress::finished);
    theirs_.ring_bell();
  }
  if (ended_ && (broken_ || mine_.state.load() == progress::finished)) close();
}

// The other end may be at a copy into our receives on another thread: it is over soon. After that, both rings are ours.
void link::close() noexcept {
  if (broken_ && mine_.state.load() != progress::broken)
    mine_.break_off(errc::peer_vanished, "the peer has broken the connection off");
  if (!broken_) mine_.state.store(progress::closed);
  while (theirs_.inside.load()) std::this_thread::yield();
  theirs_.ring_bell();
  if (mine_.bell.exchange(end::bell_state::shut) == end::bell_state::rung) home_.withdraw(*this);
  for (const std::uint32_t key : exposed_) mine_.memory->keys().erase(key);
  exposed_.clear();
  while (mine_.arrived.front() != nullptr) {
    net::receive_work& work = *mine_.arrived.front()->work;
    mine_.arrived.pop();
    events_->receive_flushed(work);
  }
  while (mine_.posted.front() != nullptr) {
    net::receive_work& work = **mine_.posted.front();
    mine_.posted.pop();
    events_->receive_flushed(work);
  }
  closed_ = true;
}

// ---- exposures ----

task<net::exposed_place> link::expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) {
  net::check_exposed_uses(uses);
  if (ended_ || closed_) throw error(errc::closed, "expose a buffer");
  exposed_.reserve(exposed_.size() + 1);
  const std::uint32_t key = mine_.memory->keys().open(
      {.memory = memory.bytes(), .rights = mr::rights_for(uses), .end = mine_.id, .gate = gate});
  exposed_.push_back(key);
  co_return net::exposed_place(key, 0);
}

void link::revoke(std::uint64_t key, net::revocation& who) noexcept {
  const auto number = static_cast<std::uint32_t>(key);
  if (std::erase(exposed_, number) != 0) mine_.memory->keys().erase(number);
  who.revoked();
}

}  // namespace weft::toy
