// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/batch.hpp>
#include <weft/net/connection/completion_order.hpp>
#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/operation_table.hpp>
#include <weft/net/connection/refusal.hpp>
#include <weft/net/connection/transfer.hpp>
#include <weft/net/connection/write_notices.hpp>
#include <weft/net/link/live_statistics.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/list.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace weft::net {

/// The kind of request that carries an operation out.
[[nodiscard]] work_kind work_kind_of(transfer_kind kind) noexcept;

/// A connection's operations: the queue in which they wait for a slot and for credits, their way over the link, and
/// their completion. Also sends the connection's own messages.
class sending final : private write_notices::outlet {
 public:
  /// Carries out, one at a time, operations that the fabric cannot carry out. Implemented by staging.
  class carrier {
   public:
    /// Begins to carry out an operation that has left the queue. end_carrying() follows, and then carried_out(), unless
    /// leave() was called. If memory is short, the operation ends with errc::no_memory.
    virtual void begin(transfer& item) noexcept = 0;
    virtual void begin(list_operation& all) noexcept = 0;
    /// Keeps the memory of an abandoned transfer for its pieces in flight, and begins no further piece.
    virtual void leave(transfer& item) noexcept = 0;
    /// Begins no further element. The list ends when the elements in progress have ended.
    virtual void stop(list_operation& all) noexcept = 0;
    /// True while it carries out an operation, or a request of the peer's.
    [[nodiscard]] virtual bool is_busy() const noexcept = 0;
    /// Ends current and later requests to the peer with `why`, because the peer will answer no more.
    virtual void give_up(const error& why) noexcept = 0;

   protected:
    ~carrier() = default;
  };
  /// Makes the carrier when it is first needed.
  class carrier_maker {
   public:
    /// Makes the carrier; not called again once it has succeeded. Throws std::bad_alloc.
    [[nodiscard]] virtual carrier& make_carrier() = 0;

   protected:
    ~carrier_maker() = default;
  };

  sending(connection_state& state, carrier_maker& maker);
  sending(const sending&) = delete;
  sending& operator=(const sending&) = delete;
  ~sending();

  /// The most requests posted at a time, including the connection's own messages.
  [[nodiscard]] std::uint16_t depth() const noexcept {
    return static_cast<std::uint16_t>(state_.options.send_depth + control_requests);
  }
  /// Makes the table of records for the link, before the link is started. Throws std::bad_alloc.
  void attach();
  /// Makes the first records, once the link has been started.
  void link_started() noexcept;

  void start(transfer& item);
  /// Carries the operation out at once if nothing stands in the way: operation_owner::take_now().
  [[nodiscard]] taken take_now(transfer& item, weft::detail::promise_base& waiter) noexcept;
  /// Sends without waiting. False if the send would have to wait: then nothing has happened, and `item` still has its
  /// memory. Throws the error of a send that is refused, or that fails at once.
  [[nodiscard]] bool try_send(transfer& item);
  /// True if no operation waits or is in flight.
  [[nodiscard]] bool is_clear() const noexcept { return waiting_.empty() && state_.statistics.in_flight.get() == 0; }
  /// The order in which the tasks of completed operations go on.
  [[nodiscard]] completion_order& order() noexcept { return order_; }
  /// The value of link::takes_at_once().
  [[nodiscard]] bool may_be_at_once() const noexcept { return at_once_; }
  void start(batch_operation& all);
  void start(list_operation& all);
  /// Ends the operation, or each unfinished member of the batch, with errc::canceled at once. But if an operation on
  /// borrowed memory was posted or is carried, this aborts the connection, and the completion ends the operation.
  void stop(transfer& item) noexcept;
  void stop(batch_operation& all) noexcept;
  /// Posts no more elements; the list ends when the posted elements have ended.
  void stop(list_operation& all) noexcept;
  void abandon(transfer& item) noexcept;
  void abandon(batch_operation& all) noexcept;
  void abandon(list_operation& all) noexcept;
  void fail_waiting(const error& why) noexcept;
  /// Posts waiting operations, strictly in the order of the queue: an operation that cannot be posted yet holds back
  /// all operations behind it.
  void pump() noexcept {
    if (!waiting_.empty()) [[unlikely]]
      post_waiting();
  }

  /// True if no operation waits or is in flight, the carrier is idle, and no notice is due.
  [[nodiscard]] bool is_idle() const noexcept {
    return waiting_.empty() && state_.statistics.in_flight.get() == 0 &&
           (carrier_ == nullptr || !carrier_->is_busy()) && notices_.has_told_all();
  }

  /// Sets the carrier, which was made for a message of the peer's before any operation needed it.
  void set_carrier(carrier& made) noexcept { carrier_ = &made; }
  /// True if staging has to copy this local memory: memory of a device that the link cannot reach, or, over rails, of
  /// any device.
  [[nodiscard]] bool is_beyond(const mr::slice& memory) const noexcept;
  /// Lets the next pump() begin the operations behind the carried one, which the carrier has finished or given up.
  void end_carrying() noexcept { unlink(barrier_); }
  /// Ends an operation that was given to the carrier; `failure` is empty if it succeeded.
  void carried_out(transfer& item, std::optional<error> failure) noexcept;
  void carried_out(list_operation& all, std::optional<error> failure) noexcept;

  /// True while the slot for control messages of this kind is with the link. There are two slots: one for the close
  /// message, one for all other control messages.
  [[nodiscard]] bool is_busy_with(message_kind kind) const noexcept { return control_busy_[slot_of(kind)]; }
  /// Posts a control message, whose slot must be free: see is_busy_with(). `immediate` and `writes` are fields of the
  /// trailer.
  void post_control(message_kind kind, std::uint32_t immediate = 0, std::uint32_t writes = 0) noexcept;
  [[nodiscard]] write_notices& notices() noexcept { return notices_; }

  [[nodiscard]] static bool is_control(const work_request& work) noexcept { return work.slot < control_requests; }
  void completed(work_request& work, work_status status) noexcept;
  /// Completes the oldest `count` elements of a run that are in flight: see link_events::run_advanced().
  void run_advanced(work_run& run, std::size_t count, work_status status) noexcept;
  /// Frees the message's slot. True if that is the slot which all control messages but the close message share.
  bool control_completed(const work_request& work) noexcept;

 private:
  // write_notices::outlet
  [[nodiscard]] bool is_taken() const noexcept override { return is_busy_with(message_kind::written); }
  void post_notice(message_kind kind, std::uint32_t counter, std::uint32_t writes) noexcept override {
    post_control(kind, counter, writes);
  }

  [[nodiscard]] static std::size_t slot_of(message_kind kind) noexcept;
  // Returns false if the operation is or was awaited, alone or in a group, or was moved from.
  [[nodiscard]] static bool is_new(const transfer& item) noexcept { return item.batch_ == nullptr && !item.spent_; }
  [[nodiscard]] bool take(transfer& item) noexcept;
  [[nodiscard]] bool take_one(transfer& item) noexcept;
  [[nodiscard]] bool prepare(transfer& item) const;
  [[nodiscard]] static bool take_pin(transfer& item) noexcept;
  [[nodiscard]] static bool may_use(const transfer& item) noexcept;
  [[nodiscard]] std::optional<error> prepare(batch_operation& all) const;
  [[nodiscard]] std::optional<error> check(list_operation& all) const;
  [[gnu::cold]] void refuse(transfer& item, refusal::reason why) const;
  [[gnu::cold]] void refuse_again(transfer& item);
  [[gnu::cold]] void wait(transfer& item) noexcept;
  [[gnu::cold]] void start_internal(transfer& item);
  void enqueue(transfer& item) noexcept;
  void enqueue_first(transfer& item) noexcept;
  [[nodiscard]] bool has_staged_part(const transfer& item) const noexcept;
  [[nodiscard]] bool try_to_carry(transfer& item) noexcept;
  [[nodiscard]] carrier& get_carrier();
  void unlink(transfer& item) noexcept;
  void post_waiting() noexcept;
  [[nodiscard]] static list_operation& list_of(transfer& element) noexcept {
    return static_cast<list_operation&>(*element.batch_);
  }
  void set_room_for(list_operation& all) const noexcept;
  [[nodiscard]] bool post_elements(list_operation& all) noexcept;
  void post_one_by_one(list_operation& all) noexcept;
  void post_run(list_operation& all) noexcept;
  [[nodiscard]] run_portion next_portion(const list_operation& all) const noexcept;
  void post_element(transfer& element, live_statistics::operations& counted) noexcept;
  static void name(operation_record& record, const transfer& item) noexcept;
  void element_completed(operation_record& record, list_operation& all, work_status status) noexcept;
  [[gnu::cold]] void tell(list_operation& all, std::size_t first, std::size_t count) noexcept;
  [[gnu::cold]] void elements_failed(list_operation& all, std::size_t count, work_status status) noexcept;
  [[nodiscard]] bool may_post(const transfer& item) noexcept;
  [[nodiscard]] bool has_credit() const noexcept {
    return !state_.properties().native || state_.sent != state_.sendable;
  }
  [[nodiscard]] bool make_operations() noexcept;
  void post(transfer& item) noexcept;
  void fill(operation_record& record, transfer& item) noexcept;
  [[nodiscard]] std::span<std::byte> pack_trailer(trailer::storage& to, message_kind kind, std::uint32_t immediate = 0,
                                                  std::uint32_t writes = 0) const noexcept;
  void set_trailer(operation_record& record, message_kind kind, std::uint32_t immediate = 0,
                   std::uint32_t writes = 0) noexcept;
  [[nodiscard]] live_statistics::operations& counters_of(transfer_kind kind) noexcept;
  void count_wait(const transfer& item) noexcept;
  void reuse(operation_record& record) noexcept;
  [[gnu::cold]] void failed(operation_record& record, transfer* waiter, work_status status) noexcept;

  // describe() adds the operation to the text of `why`, unless memory is short.
  [[nodiscard]] error describe(const transfer& item, const error& why, bool posted) const noexcept;
  [[nodiscard]] error describe(list_operation& all, std::size_t place, const error& why, bool posted) const noexcept;
  [[nodiscard]] error why_failed(const transfer& item, const work_request& work, work_status status) const noexcept;
  [[nodiscard]] error why_flushed(const work_request& work, work_status status) const noexcept;

  connection_state& state_;
  write_notices notices_;
  carrier_maker& carrier_maker_;
  carrier* carrier_ = nullptr;            // null until it is made
  transfer barrier_;                      // holds back the queue while the carrier has an operation
  std::uint64_t internal_in_flight_ = 0;  // operations in flight that are the connection's own: transfer::is_internal()
  live_statistics::operations uncounted_;
  std::optional<operation_table> operations_;  // the first two records are for control messages
  operation_record* free_ = nullptr;
  weft::detail::intrusive_list<transfer> waiting_;
  bool control_busy_[control_requests] = {};  // whether the link has the slot's message
  completion_order order_;
  bool at_once_ = false;
  std::size_t most_at_once_ = 0;              // link::most_at_once() of the current link
  work_request now_;                          // the request of take_now(); kept, because most fields stay the same
  std::optional<std::uint64_t> refused_key_;  // the key of a refused access, set when the access completes
};

}  // namespace weft::net
