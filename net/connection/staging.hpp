// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device/copy_engine.hpp>
#include <weft/mr/region/region_state.hpp>
#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/operation_owner.hpp>
#include <weft/net/connection/sending.hpp>
#include <weft/net/connection/staging_memory.hpp>
#include <weft/net/connection/transfer.hpp>
#include <weft/net/exposure.hpp>
#include <weft/net/link/device_message.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace weft::net {

class connection_end;

/// Moves device memory over a fabric that does not reach it: see device_message for the protocol. Part of a connection,
/// made when it is first needed.
///
/// Carries out one operation of this end at a time: it waits for those before it, and those behind it wait, so that all
/// start, take effect and end in order. An operation is cut into pieces of a slot's size, of which as many are under
/// way as there are slots, so that some are copied while others are transported. The peer's requests are served at the
/// same time.
class staging final : public sending::carrier {
 public:
  staging(connection_state& state, sending& out, connection_end& end, operation_owner& owner);
  staging(const staging&) = delete;
  staging& operator=(const staging&) = delete;
  ~staging();

  // sending::carrier
  void begin(transfer& item) noexcept override;
  void begin(list_operation& all) noexcept override;
  void leave(transfer& item) noexcept override;
  void stop(list_operation& all) noexcept override;
  [[nodiscard]] bool is_busy() const noexcept override { return job_ != nullptr || serving_ != 0; }
  void give_up(const error& why) noexcept override;

  /// A message from the peer. Returns false if it makes no sense.
  [[nodiscard]] bool heard(const device_message& said) noexcept;

 private:
  struct job;
  struct element;
  struct piece;
  class shared_memory;
  struct closed_on_worker {
    void operator()(shared_memory* last) const noexcept;
  };

  // A piece of this end's operation, in the slot of the same number.
  struct lane {
    event ended;
    bool busy = false;
    bool ends_element = false;
    std::optional<error> failure;
    // A request to the peer about this piece.
    event answered;
    bool asks = false;
    std::optional<error> answer;
  };
  // The peer's request in a slot. The peer may send the next one as soon as it has the answer, before this end has seen
  // the answer complete.
  struct service {
    bool runs = false;
    bool has_answered = false;
    std::optional<device_message> next;
  };

  void begin(std::unique_ptr<job> what) noexcept;
  [[nodiscard]] task<> carry_out();
  [[nodiscard]] task<> carry_out(job& mine);
  [[nodiscard]] task<> prepare(job& mine);
  [[nodiscard]] task<> try_to_share(job& mine);
  [[nodiscard]] task<> end_share();
  [[nodiscard]] task<> move_elements(job& mine);
  [[nodiscard]] task<> move_element(job& mine, const element& what);
  static void note_end(job& mine, lane& used) noexcept;
  [[nodiscard]] task<> move(std::size_t slot, piece what);
  [[nodiscard]] task<> write(std::size_t slot, const piece& what);
  [[nodiscard]] task<> read(std::size_t slot, const piece& what);
  [[nodiscard]] task<> send_message(job& mine);
  [[nodiscard]] task<> flush();
  [[nodiscard]] task<> notify(job& mine);
  void conclude(std::unique_ptr<job> done) noexcept;

  [[nodiscard]] task<> find_messages();
  [[nodiscard]] task<> find_slots_of_peer();
  [[nodiscard]] task<> copy_out(mr::slice from, staging_memory& through, std::span<std::byte> to);
  [[nodiscard]] task<> copy_in(std::span<const std::byte> from, mr::slice to);
  [[nodiscard]] task<> post(std::size_t place, device_message what);
  [[nodiscard]] task<> request(std::size_t slot, device_message what);

  [[nodiscard]] bool answered(const device_message& said) noexcept;
  [[nodiscard]] bool asked(const device_message& said) noexcept;
  void begin_to_serve(task<> what);
  void served() noexcept;
  [[nodiscard]] task<> lend();
  [[nodiscard]] task<> lend_slots();
  [[nodiscard]] std::span<std::byte> lent_slot(std::size_t slot) const noexcept;
  [[nodiscard]] static std::span<std::byte> part_of(const shared_memory* shared, const device_message& asked,
                                                    const mr::memory_device& device) noexcept;
  [[nodiscard]] static device_message direct_request(const piece& what) noexcept;
  [[nodiscard]] task<> serve(device_message request);
  [[nodiscard]] task<mr::detail::device_access> carry_out(const device_message& asked);
  [[nodiscard]] task<mr::detail::device_access> copy_for_peer(const device_message& asked);
  [[nodiscard]] task<mr::detail::device_access> open_share(const device_message& asked);
  [[nodiscard]] task<> close_share();

  connection_state& state_;
  sending& out_;
  connection_end& end_;
  operation_owner& owner_;

  std::unique_ptr<job> job_;
  std::array<lane, device_message::slots> lanes_;
  std::size_t next_lane_ = 0;
  std::optional<error> over_;  // set when the peer answers no more

  staging_memory own_;  // this end's slots, for memory of its own devices
  staging_memory
      messages_;  // for messages of this end: a place for each request, for each answer, and for the set-up of slots
  bool finds_messages_ = false;
  event found_messages_;

  std::optional<mr::remote_region> slots_of_peer_;
  bool asks_for_slots_ = false;
  event found_slots_of_peer_;
  std::optional<error> no_slots_of_peer_;

  bool lends_ = false;  // the peer has asked for slots here
  bool has_lent_ = false;
  staging_memory lent_slots_;  // empty if parts of regions cannot be lent: then the slots are a pool buffer
  exposure lent_;
  std::shared_ptr<shared_memory> shared_;  // memory that the peer shares for its operation; copies hold it too
  std::array<service, device_message::slots> services_;
  std::size_t serving_ = 0;  // requests of the peer in progress
};

}  // namespace weft::net
