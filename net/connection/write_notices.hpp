// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/connection_state.hpp>
#include <weft/net/link/native_protocol.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::net {

/// What the ends of a connection tell each other of writes, where a counter wants to know of them (mr/porting's
/// write_counter) and the fabrics of its device do not see them. Part of sending.
///
/// The peer is told once a write has completed, and so is in its place. One message is under way at a time, until the
/// peer has answered, so that there is always a receive for it; meanwhile what is written adds up.
class write_notices {
 public:
  /// Who sends the connection's own messages: sending.
  class outlet {
   public:
    /// Whether the slot of such messages is taken.
    [[nodiscard]] virtual bool is_taken() const noexcept = 0;
    /// `counter` and `writes` are those of a trailer.
    virtual void post_notice(message_kind kind, std::uint32_t counter, std::uint32_t writes) noexcept = 0;

   protected:
    ~outlet() = default;
  };

  write_notices(connection_state& state, outlet& out) noexcept : state_(state), out_(out) {}
  write_notices(const write_notices&) = delete;
  write_notices& operator=(const write_notices&) = delete;

  /// So many writes have completed; `counter` is that of the peer's memory, or 0. If there is no memory to note it in,
  /// the connection ends.
  void note(std::uint32_t counter, std::size_t writes) noexcept;
  /// Whether there is nothing to tell, or nobody who would hear it.
  [[nodiscard]] bool has_told_all() const noexcept { return untold_.empty() || state_.peer_closed || state_.failure; }
  /// Says what there is to say, if the slot is free: true if it has taken that.
  [[nodiscard]] bool take_slot() noexcept;

  /// The peer has written. False if it should have waited for the answer to what it said before. take_slot() is to
  /// follow, here and below, once there is a receive for what the peer says next.
  [[nodiscard]] bool heard(std::uint32_t counter, std::uint32_t writes) noexcept;
  /// The peer has counted. False if it was told nothing.
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
