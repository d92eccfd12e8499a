// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/completion_order.hpp>
#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/receive_refill.hpp>
#include <weft/net/connection/recv_operation.hpp>
#include <weft/net/connection/sending.hpp>
#include <weft/net/connection/shared_receive_state.hpp>
#include <weft/net/link/receive_memory.hpp>
#include <weft/net/link/receive_slot.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <cstdint>
#include <memory>

namespace weft::net {

/// A connection's messages, from the receive to the waiting program, and the credits that the peer has for more.
class receiving final : private receive_refill::client, private shared_receive_state::user {
 public:
  /// `memory` is the result of find_receives().
  receiving(connection_state& state, sending& out, receive_memory memory);
  receiving(const receiving&) = delete;
  receiving& operator=(const receiving&) = delete;
  ~receiving();

  /// The number of the connection's own receives, which may all be posted at a time; 0 if they are shared.
  [[nodiscard]] std::uint16_t depth() const noexcept {
    return static_cast<std::uint16_t>(own_ != nullptr ? own_->slots.size() : 0);
  }
  /// Posts the connection's own receives, once the link has started.
  void link_started() noexcept;

  void start(recv_operation& item);
  /// As operation_owner::take_now().
  [[nodiscard]] taken take_now(recv_operation& item, weft::detail::promise_base& waiter) noexcept;
  /// Takes a message that has arrived, if no task waits for one. If none can arrive any more, throws as recv_or_throw()
  /// does.
  [[nodiscard]] std::optional<message> try_receive();
  void stop(recv_operation& item) noexcept;
  void abandon(recv_operation& item) noexcept { receivers_.remove(item); }

  [[nodiscard]] receive_slot& slot_of(const receive_work& work) noexcept {
    return shared_ != nullptr ? shared_->slot(work) : own_->slots[work.slot];
  }

  /// The kind of a message.
  enum class meaning : std::uint8_t {
    nothing,  ///< nothing to pass on: credits, data after the connection's end or this end's close, or a violation
    data,     ///< a message for the program, in its slot
    heartbeat,
    close,
    device_memory,  ///< an owner_message, in its slot
    notice,         ///< a write notice, or the answer to one: see write_notices
  };
  /// Checks the message in `slot`, and ends the connection if the message breaks the protocol.
  [[nodiscard]] meaning examine(receive_slot& slot, const arrival& what) noexcept;
  /// Keeps a message for the program, and posts the receive of any other message again. Called after examine().
  void put(receive_slot& slot, meaning what) noexcept;
  /// Takes back a receive that the link returns without a message.
  void flushed(const receive_work& work) noexcept { drop(slot_of(work)); }

  /// Sends the peer new credits, if they are at least half of receive_depth: then they cost little, and the peer seldom
  /// has to wait for them. Does nothing while the slot for the message is taken; it is called again when the slot is
  /// free.
  void offer_credits() noexcept;

  /// Hands messages to receivers, oldest to oldest, and refills the receives that this frees. If no more messages can
  /// arrive, waiting receivers end with the reason.
  void deliver() noexcept;
  /// Drops the messages that nobody has received, because this end closes.
  void discard_inbox() noexcept;
  void empty_inbox() noexcept;
  /// Refills no more receives.
  void stop_refilling() noexcept { refill_.stop(); }
  [[nodiscard]] bool is_refilling() const noexcept { return refill_.running(); }
  /// Call it only while is_refilling().
  event::wait_operation refilling_ended() noexcept { return refill_.ended(); }

 private:
  // receive_refill::client
  void refilled(receive_slot& slot, mr::buffer memory) noexcept override;
  void refill_failed(const error& why) noexcept override { state_.give_up(why); }
  // shared_receive_state::user
  void receives_failed(const error& why) noexcept override { state_.give_up(why); }

  [[nodiscard]] meaning examine_immediate(receive_slot& slot, const arrival& what) noexcept;
  [[nodiscard]] meaning examine_trailer(receive_slot& slot, const arrival& what) noexcept;
  [[nodiscard, gnu::cold]] meaning examine_control(receive_slot& slot, const arrival& what,
                                                   const trailer& said) noexcept;
  [[nodiscard]] meaning examine_notice(const trailer& said) noexcept;
  [[nodiscard, gnu::cold]] meaning refuse(const char* what) noexcept;
  [[nodiscard, gnu::cold]] meaning refuse_size() noexcept;
  [[nodiscard]] meaning keep(const arrival& what) noexcept;
  [[nodiscard]] receive_slot& hand_over(recv_operation& receiver) noexcept;
  static void hand_over(recv_operation& receiver, mr::buffer&& memory, const arrival& what) noexcept;
  void put_in_place(receive_slot& slot) noexcept;
  [[nodiscard]] bool take(recv_operation& item) noexcept;
  [[nodiscard]] taken take_into(recv_operation& item, weft::detail::promise_base& waiter) noexcept;
  [[nodiscard]] bool hold(recv_operation& item);
  [[nodiscard]] bool store(recv_operation& receiver, const arrival& what, std::span<const std::byte> content) noexcept;
  [[nodiscard]] bool take_from_link(recv_operation& item) noexcept;
  [[nodiscard]] bool make_message(recv_operation& item, const arrival& what) noexcept;
  [[nodiscard]] bool take_peeked(recv_operation& item, const untaken_message& next) noexcept;
  [[nodiscard]] bool has_sense(const trailer& said) const noexcept;
  [[gnu::cold]] [[nodiscard]] static error why_not_stored(const recv_operation& receiver, std::size_t bytes) noexcept;
  void deliver_into(recv_operation& receiver) noexcept;
  static void end(recv_operation& receiver) noexcept;
  void post(receive_slot& slot) noexcept;
  void post_refilled(receive_slot& slot) noexcept;
  void refill(receive_slot& slot) noexcept;
  void reuse(receive_slot& slot) noexcept;
  void drop(receive_slot& slot) noexcept;
  void end_receivers() noexcept;
  void end_receivers(const error* why) noexcept;
  [[noreturn, gnu::cold]] void refuse_thread() const;
  [[nodiscard]] error describe(const error& why) const noexcept;

  connection_state& state_;
  sending& out_;
  std::shared_ptr<shared_receive_state> shared_;  // null: the connection has its own receives
  std::shared_ptr<own_receives> own_;             // null: the receives are shared
  receive_refill refill_;                         // for the connection's own receives
  receive_slot_queue inbox_;
  weft::detail::intrusive_list<recv_operation> receivers_;
  completion_order order_;
};

}  // namespace weft::net
