// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/region.hpp>
#include <weft/net/batch.hpp>
#include <weft/net/connection/connection_places.hpp>
#include <weft/net/connection/lending.hpp>
#include <weft/net/connection/live_statistics.hpp>
#include <weft/net/connection/native_protocol.hpp>
#include <weft/net/connection/operation_table.hpp>
#include <weft/net/connection/receive_refill.hpp>
#include <weft/net/connection/receive_slot.hpp>
#include <weft/net/connection/recv_operation.hpp>
#include <weft/net/connection/shared_receive_state.hpp>
#include <weft/net/connection/transfer.hpp>
#include <weft/net/exposure.hpp>
#include <weft/net/options.hpp>
#include <weft/net/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/io/timer.hpp>
#include <weft/runtime/result.hpp>
#include <weft/runtime/sync/event.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft::net {

class device_state;

[[nodiscard]] const char* name_of(transfer_kind kind) noexcept;

/// Of an operation on a connection that was moved from.
[[nodiscard]] error moved_from_connection() noexcept;

/// The peer's memory as a link is told of it.
struct named_place {
  std::uint64_t key = 0;
  std::uint64_t address = 0;
};

/// What a connection receives into: memory of its own, or else what it shares with others.
struct receive_memory {
  std::shared_ptr<own_receives> own;
  std::shared_ptr<shared_receive_state> shared;
};

/// A connection without its handle: it lives until the transport has let go of everything.
///
/// It keeps rule after rule of the connection's contract on top of a link: the order of operations, slots that own what
/// is in flight, credits, the receive queue, an orderly close. On the executor `home` only.
class connection_core final : public link_events, private receive_refill::client, private weft::detail::remote_work {
 public:
  /// `receives` as find_receives() yields them. `peer` is empty towards a peer that is not weft.
  connection_core(std::shared_ptr<device_state> device, new_link established, receive_memory receives,
                  const connection_options& options);
  connection_core(const connection_core&) = delete;
  connection_core& operator=(const connection_core&) = delete;
  ~connection_core();
  /// Its place at the listener through which it came, until it has closed.
  void keep_place(std::unique_ptr<connection_place> place) noexcept { place_ = std::move(place); }

  /// What a connection with these options receives into; if that is not `shared`, waits for the pool, until `deadline`.
  [[nodiscard]] static task<receive_memory> find_receives(mr::pool& pool, const connection_options& options,
                                                          std::shared_ptr<shared_receive_state> shared,
                                                          time_point deadline);

  // The connection's own calls.
  void start(transfer& item);
  void stop(transfer& item) noexcept;
  void abandon(transfer& item) noexcept;  // its frame goes while it is in progress
  void start(batch_operation& all);
  void stop(batch_operation& all) noexcept;
  void abandon(batch_operation& all) noexcept;
  void start(recv_operation& item);
  void stop(recv_operation& item) noexcept;
  void abandon(recv_operation& item) noexcept { stop_waiting(item); }
  // Tasks begin when they are awaited, and `self` may be gone by then: `keys` tells.
  [[nodiscard]] static task<mr::remote_region> open_to_peer(connection_core& self, mr::slice memory, mr::usage uses,
                                                            mr::detail::peer_gate* gate, const std::string& what);
  [[nodiscard]] static task<exposure> expose(connection_core& self, std::shared_ptr<link_keys> keys, mr::buffer memory,
                                             mr::usage uses);
  [[nodiscard]] static task<exposure> expose(connection_core& self, std::shared_ptr<link_keys> keys, mr::slice range,
                                             mr::usage uses);
  [[nodiscard]] static task<> close(connection_core& self, std::shared_ptr<link_keys> keys);
  [[nodiscard]] const std::shared_ptr<link_keys>& keys() const noexcept { return keys_; }
  void confirm_retired(const mr::remote_key& key);
  /// What the peer's memory is called on the fabric of this connection; for work_request::remote_key.
  [[nodiscard]] result<named_place> find(const mr::remote_slice& where) const noexcept;
  void abort(std::string_view why) noexcept;
  /// Ends the connection with this error, unless it has ended.
  void give_up(const error& why) noexcept;
  /// The handle is gone: closes, or aborts, in the background and frees the core. From any thread.
  static void reap(std::unique_ptr<connection_core> core, bool abort) noexcept;

  [[nodiscard]] executor_core& home() const noexcept { return home_; }
  [[nodiscard]] mr::pool& pool() const noexcept;
  [[nodiscard]] const capabilities& properties() const noexcept { return capabilities_; }
  [[nodiscard]] connection_statistics statistics() const noexcept { return statistics_.snapshot(home_.now()); }
  [[nodiscard]] std::string_view peer() const noexcept { return link_->peer(); }
  /// The fabric that it runs on.
  [[nodiscard]] const transport& way() const noexcept;
  [[nodiscard]] std::span<const std::byte> peer_private_data() const noexcept;

 private:
  // link_events
  void completed(work_request& work, work_status status) noexcept override;
  void received(receive_work& work, const arrival& what) noexcept override;
  void receive_flushed(receive_work& work) noexcept override;
  void ended(bool orderly, const error& why) noexcept override;
  void closed() noexcept override;

  // Looks after the peer now and then.
  class heart final : public weft::detail::timer {
   public:
    explicit heart(connection_core& core) noexcept : core_(core) {}

   private:
    void expired() noexcept override { core_.beat(); }
    connection_core& core_;
  };

  // receive_refill::client
  void refilled(receive_slot& slot, mr::buffer memory) noexcept override;
  void refill_failed(const error& why) noexcept override { give_up(why); }

  // One of our coroutines goes on: the core stays for it.
  class call {
   public:
    explicit call(connection_core& core) noexcept : core_(core) {
      ++core_.calls_;
      core_.unused_.reset();
    }
    call(const call&) = delete;
    call& operator=(const call&) = delete;
    ~call() {
      if (--core_.calls_ == 0) core_.unused_.set();
    }

   private:
    connection_core& core_;
  };

  [[nodiscard]] std::optional<error> refusal(const transfer& item) const;
  [[nodiscard]] std::optional<error> missing_capability(const transfer& item) const;
  [[nodiscard]] std::optional<error> local_refusal(const transfer& item) const;
  [[nodiscard]] std::optional<error> remote_refusal(const transfer& item) const;
  [[nodiscard]] std::optional<error> rights_refusal(const transfer& item) const;
  [[nodiscard]] std::optional<error> prepare(transfer& item) const;
  [[nodiscard]] std::optional<error> prepare(batch_operation& all) const;
  void enqueue(transfer& item) noexcept;
  void unlink(transfer& item) noexcept;
  void pump() noexcept;
  [[nodiscard]] bool may_post(const transfer& item) const noexcept;
  [[nodiscard]] bool make_operations() noexcept;
  void post(transfer& item) noexcept;
  void fill(operation_record& record, const transfer& item) noexcept;
  [[nodiscard]] live_statistics::operations& counters_of(transfer_kind kind) noexcept;
  void count_wait(const transfer& item) noexcept;
  void post_control(message_kind kind) noexcept;
  void set_trailer(operation_record& slot, message_kind kind, std::uint32_t immediate = 0) noexcept;
  void control_completed(operation_record& slot) noexcept;
  void let_go(operation_record& slot) noexcept;
  void offer_credits() noexcept;
  void beat() noexcept;
  void arm_heart() noexcept;
  void ask_for_life() noexcept;
  void answer_heartbeat() noexcept;
  void fail_waiting(const error& why) noexcept;

  // What takes a message returns whether it is the user's, and so stays in its slot.
  [[nodiscard]] bool handle_message(receive_slot& slot, const arrival& what) noexcept;
  [[nodiscard]] bool handle_trailer(receive_slot& slot, const arrival& what) noexcept;
  [[nodiscard]] bool handle_immediate(receive_slot& slot, const arrival& what) noexcept;
  [[nodiscard]] bool keep_message(receive_slot& slot, const arrival& what) noexcept;
  [[nodiscard]] receive_slot& slot_of(const receive_work& work) noexcept;
  void deliver() noexcept;
  void end_receivers(const error* why) noexcept;
  void stop_waiting(recv_operation& item) noexcept;
  void refill(receive_slot& slot) noexcept;
  void post_receive(receive_slot& slot) noexcept;
  void drop(receive_slot& slot) noexcept;
  void empty_inbox() noexcept;
  void peer_has_closed() noexcept;
  void violation(const char* what, link::violation kind = link::violation::other) noexcept;
  void too_large() noexcept;

  [[nodiscard]] static std::string begin_task(const connection_core& self, const link_keys& keys, const char* what);
  [[nodiscard]] bool has_ended() const noexcept { return failure_ || closing_ || peer_closed_; }
  void begin_close() noexcept;
  void discard_inbox() noexcept;
  void advance_close() noexcept;
  [[nodiscard]] task<> wait_until_closed();
  [[nodiscard]] static task<> end_in_background(connection_core& self);
  static void reap_at_home(std::unique_ptr<connection_core> core) noexcept;
  // remote_work: its handle went on another thread
  void run_on_executor() noexcept override { reap_at_home(std::unique_ptr<connection_core>(this)); }

  // Without memory for the words, errors go without.
  [[nodiscard]] error describe(const transfer& item, const error& why, bool posted) const noexcept;
  [[nodiscard]] error refused_access() const noexcept;
  [[nodiscard]] error why_flushed(const work_request& work, work_status status) const noexcept;
  [[nodiscard]] error receive_failure(const error& why) const noexcept;
  [[nodiscard]] error why_ended() const noexcept;
  [[nodiscard]] std::string context(const char* what) const;

  executor_core& home_;
  executor_core::held_open open_{home_};  // its peer is answered
  std::unique_ptr<connection_place> place_;
  std::shared_ptr<device_state> device_;
  std::uint8_t fabric_;  // of the device's that it runs on
  std::unique_ptr<link> link_;
  std::vector<std::byte> peer_private_data_;
  std::optional<greeting> peer_greeting_;
  std::uint8_t peer_fabric_ = 0;  // of those of the peer's device
  capabilities capabilities_;
  connection_options options_;
  live_statistics statistics_;
  std::uint64_t largest_key_;
  std::shared_ptr<link_keys> keys_;

  // Sending. The first two slots are for control messages, which bypass the queue.
  operation_table operations_;
  std::vector<std::uint16_t> free_slots_;
  transfer* first_waiting_ = nullptr;
  transfer* last_waiting_ = nullptr;
  std::uint32_t sent_ = 0;      // data messages, ever
  std::uint32_t sendable_ = 0;  // data messages that the peer lets us send, ever
  bool control_busy_[2] = {};   // credits, close: their slot is with the transport

  // Heartbeats: see beat().
  heart heart_{*this};
  unsigned silent_beats_ = 0;    // in a row, without a sign of life
  bool heard_ = true;            // a message has come since the last beat
  bool moved_ = false;           // an operation of ours has completed since the last beat
  bool heartbeat_sent_ = false;  // it is with the transport, or waits for the slot of credits
  bool heartbeat_owed_ = false;  // it waits for that slot
  bool answer_owed_ = false;     // likewise our answer to the peer's

  // Receiving.
  std::shared_ptr<shared_receive_state> shared_;  // null: the receives are our own
  std::shared_ptr<own_receives> own_;             // null: they are shared
  receive_refill refill_;                         // of our own
  receive_slot_queue inbox_;
  recv_operation* first_receiver_ = nullptr;
  recv_operation* last_receiver_ = nullptr;
  std::uint32_t received_ = 0;    // data messages, ever
  std::uint32_t receivable_ = 0;  // data messages that we let the peer send, ever
  std::uint32_t offered_ = 0;     // the part of that which we have told it

  // The end.
  std::optional<error> failure_;              // why the connection is over; set once
  std::optional<std::uint64_t> refused_key_;  // the one that the peer refused an access by, if a request has told
  bool closing_ = false;                      // we close in order
  bool peer_closed_ = false;                  // the peer has, or (not weft) has finished sending
  bool shut_down_ = false;                    // the link was told to
  bool close_sent_ = false;
  bool aborted_ = false;  // by us
  bool reaped_abruptly_ = false;
  weft::detail::root_handle<void> reaper_;  // end_in_background(), made while there is memory
  event closed_;                            // the link has let go of everything
  std::size_t calls_ = 0;
  event unused_;  // no call goes on
};

}  // namespace weft::net
