// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/connection_state.hpp>
#include <weft/net/link/native_protocol.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::net {

/// Notices by which each end of a connection reports its writes to the other, for a porting::write_counter on fabrics
/// that do not see the writes. Part of sending.
///
/// The peer is notified once a write has completed and so is in place. Only one notice at a time is unanswered, so that
/// there is always a receive for it; meanwhile further writes add up.
class write_notices {
 public:
  /// Sends the connection's own messages. Implemented by sending.
  class outlet {
   public:
    /// True if the slot for notices is taken.
    [[nodiscard]] virtual bool is_taken() const noexcept = 0;
    /// Posts a control message; `counter` and `writes` are fields of its trailer.
    virtual void post_notice(message_kind kind, std::uint32_t counter, std::uint32_t writes) noexcept = 0;

   protected:
    ~outlet() = default;
  };

  write_notices(connection_state& state, outlet& out) noexcept : state_(state), out_(out) {}
  write_notices(const write_notices&) = delete;
  write_notices& operator=(const write_notices&) = delete;

  /// Notes that `writes` more writes to memory with this `counter` have completed. A `counter` of 0 means that the
  /// memory has none. Ends the connection if there is no room to note them.
  void note(std::uint32_t counter, std::size_t writes) noexcept;
  /// True if no writes are left to report, or nobody is left to receive a report.
  [[nodiscard]] bool has_told_all() const noexcept { return untold_.empty() || state_.peer_closed || state_.failure; }
  /// Sends the message that is due, if the slot is free. True if the message has taken the slot.
  [[nodiscard]] bool take_slot() noexcept;

  /// Takes a notice from the peer. False if the peer should have waited for the answer to its previous one. After
  /// heard() and answered(), call take_slot() as soon as there is a receive for the peer's next message.
  [[nodiscard]] bool heard(std::uint32_t counter, std::uint32_t writes) noexcept;
  /// Takes the peer's answer to a notice. False if no notice was in flight.
  [[nodiscard]] bool answered() noexcept { return std::exchange(awaits_answer_, false); }

 private:
  struct untold {
    std::uint32_t counter;
    std::uint64_t writes;
  };

  connection_state& state_;
  outlet& out_;
  std::vector<untold> untold_;  // writes to report, by counter; the longest waiting first
  bool awaits_answer_ = false;
  bool owes_answer_ = false;
};

}  // namespace weft::net
