// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/region_state.hpp>
#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/owner_messages.hpp>
#include <weft/net/connection/staging_memory.hpp>
#include <weft/net/exposure.hpp>
#include <weft/net/link/owner_message.hpp>
#include <weft/runtime/task.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

namespace weft::net {

class connection_end;

/// Does for the peer what the fabric cannot do with this end's memory: lends the peer slots, copies between them and
/// memory of devices, and makes memory of files persistent.
class owner_service {
 public:
  owner_service(connection_state& state, owner_messages& messages, connection_end& end) noexcept
      : state_(state), messages_(messages), end_(end) {}
  owner_service(const owner_service&) = delete;
  owner_service& operator=(const owner_service&) = delete;

  /// Lends the peer slots, at its request. Returns false if the peer has asked before and was not refused.
  [[nodiscard]] bool lend() noexcept;
  /// Carries out a request of the peer in the request's slot. Returns false if the request breaks the protocol.
  [[nodiscard]] bool asked(const owner_message& said) noexcept;
  [[nodiscard]] bool is_busy() const noexcept { return serving_ != 0; }

 private:
  class shared_memory;
  struct closed_on_worker {
    void operator()(shared_memory* last) const noexcept;
  };
  // The peer's request in a slot. The peer may send its next request as soon as it has the answer, before this end has
  // seen the answer complete.
  struct service {
    bool runs = false;
    bool has_answered = false;
    std::optional<owner_message> next;
  };

  // Slots for the peer:
  //   none         the peer has not asked, or was refused
  //   looked_for   the peer has asked, and this end looks for memory
  //   refused      the refusal is being sent; the peer may ask again before this end has seen the refusal complete
  //   asked_again  the peer has asked again that early
  //   lent         the peer has the slots, for as long as the connection lasts
  enum class slots_of_peer : std::uint8_t { none, looked_for, refused, asked_again, lent };

  template <class Make>
  void begin(Make make) noexcept;
  void served() noexcept;
  task<> lend_to_peer();
  task<> answer_about_slots();
  task<> lend_slots();
  [[nodiscard]] std::span<std::byte> lent_slot(std::size_t slot) const noexcept;
  [[nodiscard]] static std::span<std::byte> part_of(const shared_memory* shared, const owner_message& asked,
                                                    const mr::memory_device& device) noexcept;
  task<> serve(owner_message request);
  task<mr::detail::owner_access> carry_out(const owner_message& asked);
  task<mr::detail::owner_access> copy_for_peer(const owner_message& asked);
  [[nodiscard]] mr::detail::owner_access begin(const owner_message& asked, mr::usage purpose,
                                               mr::detail::owner_key_use& use) const noexcept;
  task<mr::detail::owner_access> persist(const owner_message& asked);
  task<mr::detail::owner_access> open_share(const owner_message& asked);
  task<> close_share();

  connection_state& state_;
  owner_messages& messages_;
  connection_end& end_;
  slots_of_peer lending_ = slots_of_peer::none;
  // Empty until the slots are lent. Stays empty if parts of regions cannot be lent: the slots are then a pool buffer's.
  staging_memory lent_slots_;
  exposure lent_;
  std::shared_ptr<shared_memory> shared_;  // memory that the peer shares for an operation; copies hold it too
  std::array<service, owner_message::slots> services_;
  std::size_t serving_ = 0;  // requests in progress
};

}  // namespace weft::net
