// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/connection_state.hpp>
#include <weft/net/link/native_protocol.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::net {

/// Notices by which the ends of a connection report writes to each other, for a counter (mr/porting's write_counter) of
/// a device whose fabrics do not see them. Part of sending.
///
/// The peer is notified once a write has completed and so is in place. One notice is in flight at a time, until the
/// peer has answered, so that there is always a receive for it; meanwhile further writes add up.
class write_notices {
 public:
  /// Sends the connection's own messages: sending.
  class outlet {
   public:
    /// True if the slot for notices is taken.
    [[nodiscard]] virtual bool is_taken() const noexcept = 0;
    /// `counter` and `writes` are fields of the trailer.
    virtual void post_notice(message_kind kind, std::uint32_t counter, std::uint32_t writes) noexcept = 0;

   protected:
    ~outlet() = default;
  };

  write_notices(connection_state& state, outlet& out) noexcept : state_(state), out_(out) {}
  write_notices(const write_notices&) = delete;
  write_notices& operator=(const write_notices&) = delete;

  /// Notes that `writes` more writes to memory with this `counter` have completed; 0: it has none. Ends the connection
  /// if memory is short.
  void note(std::uint32_t counter, std::size_t writes) noexcept;
  /// True if there is nothing to send, or nobody to receive it.
  [[nodiscard]] bool has_told_all() const noexcept { return untold_.empty() || state_.peer_closed || state_.failure; }
  /// Sends the message that is due, if the slot is free. True if the message has taken the slot.
  [[nodiscard]] bool take_slot() noexcept;

  /// Takes a notice from the peer. False if the peer should have waited for the answer to its previous one. After this
  /// and after answered(), call take_slot() once there is a receive for the peer's next message.
  [[nodiscard]] bool heard(std::uint32_t counter, std::uint32_t writes) noexcept;
  /// Called when the peer has answered. False if no notice was in flight.
  [[nodiscard]] bool answered() noexcept;

 private:
  struct untold {
    std::uint32_t counter;
    std::uint64_t writes;
  };

  connection_state& state_;
  outlet& out_;
  std::vector<untold> untold_;  // in the order in which the counters were first written to
  bool awaits_answer_ = false;
  bool owes_answer_ = false;
};

}  // namespace weft::net
