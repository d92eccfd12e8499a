// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device/copy_engine.hpp>
#include <weft/mr/region/region_state.hpp>
#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/operation_owner.hpp>
#include <weft/net/connection/owner_messages.hpp>
#include <weft/net/connection/owner_service.hpp>
#include <weft/net/connection/sending.hpp>
#include <weft/net/connection/staging_memory.hpp>
#include <weft/net/connection/transfer.hpp>
#include <weft/net/link/owner_message.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

namespace weft::net {

class connection_end;

/// Carries out operations on device memory that the fabric does not reach, and persistent flushes by the owner. See
/// owner_message for the protocol. Part of a connection, made when it is first needed.
///
/// Carries out one operation of this end at a time. The operation waits for earlier ones, and later ones wait for it,
/// so that all start, take effect and end in order. A write or a read is cut into pieces of at most slot_bytes
/// (most_direct_bytes if direct), of which at most as many are in flight as there are slots, so that some are copied
/// while others are transported. The peer's requests are served at the same time.
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
  [[nodiscard]] bool is_busy() const noexcept override { return job_ != nullptr || service_.is_busy(); }
  void give_up(const error& why) noexcept override;

  /// Handles a message from the peer. Returns false if the message breaks the protocol.
  [[nodiscard]] bool heard(const owner_message& said) noexcept;

 private:
  struct job;
  struct element;
  struct piece;

  // What goes on in the slot of the same number: while `busy`, a piece of this end's operation is in flight there.
  struct lane {
    event ended;
    bool busy = false;
    bool ends_element = false;
    std::optional<error> failure;
    // While `asks`, a request to the peer is unanswered in this slot, about the piece or, in slot 0, about the whole
    // operation.
    event answered;
    bool asks = false;
    std::optional<error> answer;
  };

  void begin(std::unique_ptr<job> what) noexcept;
  task<> carry_out();
  task<> carry_out(job& mine);
  task<> prepare(job& mine);
  task<> try_to_share(job& mine);
  task<> end_share();
  task<> move_elements(job& mine);
  task<> move_element(job& mine, const element& what);
  static void note_end(job& mine, lane& used) noexcept;
  task<> move(std::size_t slot, piece what);
  task<> write(std::size_t slot, const piece& what);
  task<> read(std::size_t slot, const piece& what);
  task<> send_message(job& mine);
  task<> flush();
  task<> persist(job& mine);
  task<> notify(job& mine);
  void conclude(std::unique_ptr<job> done) noexcept;

  task<> find_slots_of_peer();
  task<> copy_out(mr::slice from, staging_memory& through, std::span<std::byte> to);
  task<> copy_in(std::span<const std::byte> from, mr::slice to);
  task<> request(std::size_t slot, owner_message what);

  [[nodiscard]] bool is_in_reach(const mr::remote_region& memory) const noexcept;
  [[nodiscard]] bool answered(const owner_message& said) noexcept;
  [[nodiscard]] static owner_message direct_request(const piece& what) noexcept;

  connection_state& state_;
  sending& out_;
  connection_end& end_;
  operation_owner& owner_;

  std::unique_ptr<job> job_;
  std::array<lane, owner_message::slots> lanes_;
  std::size_t next_lane_ = 0;
  std::optional<error> over_;  // set once the peer will answer no more

  staging_memory own_;  // this end's slots, for memory of its own devices
  owner_messages messages_;

  std::optional<mr::remote_region> slots_of_peer_;
  bool asks_for_slots_ = false;
  event found_slots_of_peer_;
  std::optional<error> no_slots_of_peer_;

  owner_service service_;
};

}  // namespace weft::net
