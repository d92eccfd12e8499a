// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/receiving.hpp>

#include <fmt/core.h>

#include <cassert>
#include <cstring>
#include <new>
#include <span>
#include <utility>

namespace weft::net {

using weft::detail::make_error;

receiving::receiving(connection_state& state, sending& out, receive_memory memory)
    : state_(state),
      out_(out),
      shared_(std::move(memory.shared)),
      own_(std::move(memory.own)),
      refill_(*this, state.device->pool(), receive_bytes(state.options)),
      order_(state.home) {
  if (shared_ != nullptr) shared_->join(*this);
}

receiving::~receiving() {
  assert(receivers_.empty());
  empty_inbox();
  if (shared_ != nullptr) shared_->leave(*this);
}

void receiving::link_started() noexcept {
  if (own_ == nullptr) return;
  for (receive_slot& slot : own_->slots) state_.link().post_receive(slot.work);
}

// ---- messages ----

[[gnu::noinline]] receiving::meaning receiving::refuse(const char* what) noexcept {
  state_.violation(what);
  return meaning::nothing;
}

[[gnu::noinline]] receiving::meaning receiving::refuse_size() noexcept {
  state_.too_large();
  return meaning::nothing;
}

// Flattened, like deliver(), because each message comes this way.
[[gnu::flatten]] receiving::meaning receiving::examine(receive_slot& slot, const arrival& what) noexcept {
  if (state_.properties().native) return what.immediate ? examine_immediate(slot, what) : examine_trailer(slot, what);
  if (what.bytes > state_.options.receive_size) return refuse_size();
  slot.what = what;
  return keep(slot.what);
}

// A weft peer's write with immediate data arrives without a trailer. Sends carry their immediate data in the trailer.
receiving::meaning receiving::examine_immediate(receive_slot& slot, const arrival& what) noexcept {
  if (what.bytes != 0) return refuse("a message without a valid trailer");
  if (state_.peer_closed) return refuse("a message after the last one");
  if (state_.received == state_.offered) return refuse("a message without a credit");
  ++state_.received;
  slot.what = what;
  return keep(slot.what);
}

bool receiving::has_sense(const trailer& said) const noexcept {
  const std::uint32_t most = state_.carrier.peer_greeting->receive_depth;
  return said.credits - state_.sendable <= most && said.credits - state_.sent <= most;
}

// Everything here comes from the peer: check it before believing it.
receiving::meaning receiving::examine_trailer(receive_slot& slot, const arrival& what) noexcept {
  if (state_.peer_closed) return refuse("a message after the last one");
  const auto said = trailer::unpack(slot.content_of(what));
  if (!said) return refuse("a message without a valid trailer");
  if (!has_sense(*said)) return refuse("more credits than this end can use");
  state_.sendable = said->credits;
  if (said->kind != message_kind::data && said->kind != message_kind::data_with_immediate) {
    return examine_control(slot, what, *said);
  }
  if (state_.received == state_.offered) return refuse("a message without a credit");
  slot.what = what;
  slot.what.bytes -= said->size();
  if (slot.what.bytes > state_.options.receive_size) return refuse_size();
  if (said->kind == message_kind::data_with_immediate) slot.what.immediate = said->immediate;
  ++state_.received;
  return keep(slot.what);
}

[[gnu::noinline]] receiving::meaning receiving::examine_control(receive_slot& slot, const arrival& what,
                                                                const trailer& said) noexcept {
  switch (said.kind) {
    case message_kind::heartbeat:
      return meaning::heartbeat;
    case message_kind::close:
      return meaning::close;
    case message_kind::device_memory:
      if (!state_.carrier.agreed.asks_owners()) return refuse("a message without a valid trailer");
      slot.what = what;
      slot.what.bytes -= said.size();
      return meaning::device_memory;
    case message_kind::written:
    case message_kind::counted:
      return examine_notice(said);
    case message_kind::credits:
    case message_kind::data:
    case message_kind::data_with_immediate:
      break;
  }
  return meaning::nothing;
}

receiving::meaning receiving::examine_notice(const trailer& said) noexcept {
  if (!state_.carrier.agreed.write_notices) return refuse("a message without a valid trailer");
  write_notices& notices = out_.notices();
  const bool is_written = said.kind == message_kind::written;
  const bool has_sense = is_written ? notices.heard(said.immediate, said.writes) : notices.answered();
  return has_sense ? meaning::notice : refuse("a write notice out of turn");
}

receiving::meaning receiving::keep(const arrival& what) noexcept {
  state_.statistics.messages_received.add(1);
  state_.statistics.bytes_received.add(what.bytes);
  if (!state_.closing && !state_.failure) return meaning::data;
  ++state_.receivable;  // nobody will receive the message, so its receive is posted again
  return meaning::nothing;
}

void receiving::put(receive_slot& slot, meaning what) noexcept {
  if (what != meaning::data) {
    post(slot);
    return offer_credits();
  }
  if (!slot.what.in_place.empty()) return put_in_place(slot);
  inbox_.push(slot);
  deliver();
}

// Copies the message into the memory of a waiting recv_into(), or else into that of its receive.
void receiving::put_in_place(receive_slot& slot) noexcept {
  const std::span<const std::byte> content = std::exchange(slot.what.in_place, {}).first(slot.what.bytes);
  recv_operation* const receiver = receivers_.first();
  if (inbox_.empty() && receiver != nullptr && receiver->target_ != nullptr && store(*receiver, slot.what, content)) {
    receivers_.remove(*receiver);
    end(*receiver);
    order_.note();
    return reuse(slot);
  }
  std::memcpy(slot.work.memory.data(), content.data(), content.size());
  inbox_.push(slot);
  deliver();
}

// Copies a message into the memory of a recv_into(). False if the message does not fit, or if a file behind the memory
// has become shorter; the message is then left to the next receive.
bool receiving::store(recv_operation& receiver, const arrival& what, std::span<const std::byte> content) noexcept {
  receive_target& target = *receiver.target_;
  // mutant: beyond the end of the memory
  if (content.size() > target.size() || !target.store(content, state_)) return false;
  target.said = {.bytes = content.size(), .immediate = what.immediate, .invalidated_key = what.invalidated_key};
  return true;
}

void receiving::end(recv_operation& receiver) noexcept {
  if (receiver.target_ != nullptr) receiver.target_->let_go();
  receiver.finish();
}

// Flattened, with rare cases kept out of line.
[[gnu::flatten]] void receiving::deliver() noexcept {
  while (!receivers_.empty() && !inbox_.empty()) {
    recv_operation& receiver = receivers_.pop_front();
    if (receiver.target_ != nullptr) [[unlikely]] {
      deliver_into(receiver);
      continue;
    }
    receive_slot& oldest = hand_over(receiver);
    receiver.finish();
    order_.note();
    refill(oldest);
  }
  if (!receivers_.empty() && state_.input_has_ended()) [[unlikely]]
    end_receivers();
}

[[gnu::noinline]] void receiving::deliver_into(recv_operation& receiver) noexcept {
  receive_slot& oldest = inbox_.front();
  const bool stored = store(receiver, oldest.what, oldest.memory.bytes().first(oldest.what.bytes));
  if (!stored) receiver.failure_ = describe(why_not_stored(receiver, oldest.what.bytes));
  end(receiver);
  order_.note();
  if (stored) reuse(inbox_.pop());
}

error receiving::why_not_stored(const recv_operation& receiver, std::size_t bytes) noexcept try {
  const std::size_t room = receiver.target_->size();
  if (bytes <= room) return error(errc::invalid_argument, "the file behind the memory has become shorter");
  return error(
      errc::message_too_large,
      fmt::format("the next message has {} bytes, the memory {}; the message waits for the next receive", bytes, room));
} catch (const std::bad_alloc&) {
  return make_error(errc::message_too_large);
}

// Takes the oldest message; the caller refills its slot.
receive_slot& receiving::hand_over(recv_operation& receiver) noexcept {
  receive_slot& oldest = inbox_.pop();  // mutant: deliver a message
  hand_over(receiver, std::move(oldest.memory), oldest.what);
  return oldest;
}

void receiving::hand_over(recv_operation& receiver, mr::buffer&& memory, const arrival& what) noexcept {
  memory.resize(what.bytes);  // mutant: let memory grow
  message& content = receiver.message_.emplace(std::move(memory));
  content.immediate = what.immediate;
  content.invalidated_key = what.invalidated_key;
}

[[gnu::noinline]] void receiving::end_receivers() noexcept {
  if (state_.peer_closed || state_.input_over) return end_receivers(nullptr);
  const error why = describe(state_.why_ended());
  end_receivers(&why);
}

void receiving::end_receivers(const error* why) noexcept {
  while (!receivers_.empty()) {
    recv_operation& receiver = receivers_.pop_front();
    if (why != nullptr) receiver.failure_ = *why;
    if (why == nullptr && receiver.expects_message_) {
      receiver.failure_ = describe(make_error(errc::peer_closed));
    }
    end(receiver);
  }
}

void receiving::start(recv_operation& item) {
  if (executor_core::current() != &state_.home) [[unlikely]]
    refuse_thread();
  if (item.target_ != nullptr && !hold(item)) return;
  receivers_.push_back(item);
  if (!inbox_.empty() || state_.input_has_ended()) deliver();
}

bool receiving::hold(recv_operation& item) {
  const auto why_not = item.target_->hold(state_);
  if (!why_not) return true;
  item.failure_ = describe(*why_not);
  end(item);
  return false;
}

// Lets a task that receives one message after another go on in the same turn, so that the operations which it posts in
// reply leave together. Any unusual case is left to start(), and to the link's events.
[[gnu::flatten]] taken receiving::take_now(recv_operation& item, weft::detail::promise_base& waiter) noexcept {
  if (!receivers_.empty() || executor_core::current() != &state_.home) return taken::no;
  if (item.target_ != nullptr) [[unlikely]]
    return take_into(item, waiter);
  if (!item.may_end_at_once(waiter) || !take(item)) return taken::no;
  item.failure_.reset();  // the failure of an earlier await
  return order_.go_on(waiter);
}

[[gnu::flatten]] bool receiving::take(recv_operation& item) noexcept {
  if (inbox_.empty()) return take_from_link(item);  // mutant: ahead of those that arrived before
  refill(hand_over(item));
  return true;
}

std::optional<message> receiving::try_receive() {
  if (executor_core::current() != &state_.home) refuse_thread();
  recv_operation item(nullptr);
  if (receivers_.empty() && take(item)) return std::move(item.message_);
  if (!inbox_.empty() || !state_.input_has_ended()) return std::nullopt;
  throw describe(state_.peer_closed || state_.input_over ? make_error(errc::peer_closed) : state_.why_ended());
}

[[gnu::flatten, gnu::noinline]] taken receiving::take_into(recv_operation& item,
                                                           weft::detail::promise_base& waiter) noexcept {
  if (item.waiting() || !item.may_end_at_once(waiter) || !item.target_->may_hold(state_)) return taken::no;
  if (inbox_.empty()) {
    if (!take_from_link(item)) return taken::no;
  } else {
    receive_slot& oldest = inbox_.front();
    if (!store(item, oldest.what, oldest.memory.bytes().first(oldest.what.bytes))) return taken::no;
    reuse(inbox_.pop());
  }
  item.failure_.reset();  // the failure of an earlier await
  return order_.go_on(waiter);
}

// Takes a message straight from the link's memory. If that is not possible, lets the link deliver what has arrived to
// the inbox, and takes the message from there, unless it is for a recv_into().
bool receiving::take_from_link(recv_operation& item) noexcept {
  if (!out_.may_be_at_once()) return false;
  link& from = state_.link();
  if (const untaken_message next = from.peek_message(); !next.bytes.empty() && take_peeked(item, next)) {
    from.take_peeked(next);
    offer_credits();
    out_.pump();
    return true;
  }
  from.take_arrived();
  if (inbox_.empty()) return false;
  if (item.target_ == nullptr) return refill(hand_over(item)), true;
  return false;
}

// Makes a message with a payload for the caller to fill in. False if the pool has no memory for it at hand.
bool receiving::make_message(recv_operation& item, const arrival& what) noexcept {
  auto memory = refill_.try_take();
  if (!memory) return false;
  hand_over(item, *std::move(memory), what);
  return true;
}

// Everything here comes from the peer. An invalid message stays with the link, and examine() refuses it on delivery.
bool receiving::take_peeked(recv_operation& item, const untaken_message& next) noexcept {
  if (shared_ != nullptr || state_.has_ended()) return false;
  std::optional<trailer> said;
  arrival what{.bytes = next.bytes.size()};
  if (state_.properties().native) {
    said = trailer::unpack(next.bytes);
    if (!said || !has_sense(*said) || state_.received == state_.offered) return false;
    if (said->kind == message_kind::data_with_immediate) {
      what.immediate = said->immediate;
    } else if (said->kind != message_kind::data) {
      return false;
    }
    what.bytes -= said->size();
  }
  if (what.bytes > state_.options.receive_size) return false;
  const std::span<const std::byte> content = next.bytes.first(what.bytes);
  if (item.target_ != nullptr) {
    if (!store(item, what, content)) return false;
  } else {
    if (!make_message(item, what)) return false;
    std::memcpy(item.message_->payload.data(), content.data(), content.size());
  }
  if (said) {
    state_.sendable = said->credits;
    ++state_.received;
  }
  ++state_.receivable;  // mutant: give no credit
  state_.statistics.messages_received.add(1);
  state_.statistics.bytes_received.add(content.size());
  return true;
}

void receiving::stop(recv_operation& item) noexcept {
  receivers_.remove(item);  // mutant: lose a credit
  item.failure_ = describe(make_error(errc::canceled));
  end(item);
}

void receiving::refuse_thread() const { throw error(errc::wrong_thread, state_.context("receive from")); }

void receiving::post(receive_slot& slot) noexcept {
  if (shared_ != nullptr) return shared_->post(slot);  // other connections need the receive, even if this one has ended
  if (state_.failure) return;
  slot.prepare(receive_bytes(state_.options));
  state_.link().post_receive(slot.work);
}

// Finds new memory for a receive whose message was taken, and then gives the peer its credit back. Shared receives are
// not bound to the connection's credits, so with them the credit returns at once.
void receiving::refill(receive_slot& slot) noexcept {
  if (shared_ != nullptr) shared_->refill(slot);
  if (state_.input_has_ended()) return;
  if (shared_ == nullptr) return refill_.try_fill(slot) ? post_refilled(slot) : refill_.add(slot);
  ++state_.receivable;
  offer_credits();
}

// Like refill(), for a receive whose memory has stayed.
void receiving::reuse(receive_slot& slot) noexcept {
  if (shared_ != nullptr) shared_->post(slot);
  if (state_.input_has_ended()) return;
  if (shared_ == nullptr) return post_refilled(slot);
  ++state_.receivable;
  offer_credits();
}

void receiving::refilled(receive_slot& slot, mr::buffer memory) noexcept {
  slot.memory = std::move(memory);
  post_refilled(slot);
}

void receiving::post_refilled(receive_slot& slot) noexcept {
  post(slot);
  state_.link().ring();
  ++state_.receivable;
  offer_credits();
}

void receiving::empty_inbox() noexcept {
  while (!inbox_.empty()) drop(inbox_.pop());
}

// Posts a shared receive again; frees the memory of a receive of the connection's own. Any message in the slot is lost.
void receiving::drop(receive_slot& slot) noexcept {
  if (shared_ != nullptr) return shared_->post(slot);
  slot.memory = mr::buffer();
}

void receiving::offer_credits() noexcept {
  const std::uint32_t owed = state_.receivable - state_.offered;
  if (owed * 2 < state_.options.receive_depth || owed == 0) return;  // mutant: never offer credits
  if (!state_.properties().native || state_.is_silent() || out_.is_busy_with(message_kind::credits)) return;
  out_.post_control(message_kind::credits);
}

// Until the close message has been sent, posts the receives again and gives the peer credits for them: if the peer is
// closing too, its own close message may wait behind operations that need these credits.
void receiving::discard_inbox() noexcept {
  if (state_.close_sent || state_.peer_closed || state_.failure) return empty_inbox();
  while (!inbox_.empty()) {
    post(inbox_.pop());
    ++state_.receivable;
  }
  state_.link().ring();
  offer_credits();
}

error receiving::describe(const error& why) const noexcept try {
  return why.within(state_.context("receive from"));
} catch (const std::bad_alloc&) {
  return why;
}

}  // namespace weft::net
