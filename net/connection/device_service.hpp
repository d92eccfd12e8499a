// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/region_state.hpp>
#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/device_messages.hpp>
#include <weft/net/connection/staging_memory.hpp>
#include <weft/net/exposure.hpp>
#include <weft/net/link/device_message.hpp>
#include <weft/runtime/task.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>

namespace weft::net {

class connection_end;

/// Serves the peer's requests for device memory of this end, which the fabric does not reach: lends the peer slots, and
/// copies between them and the memory.
class device_service {
 public:
  device_service(connection_state& state, device_messages& messages, connection_end& end) noexcept
      : state_(state), messages_(messages), end_(end) {}
  device_service(const device_service&) = delete;
  device_service& operator=(const device_service&) = delete;

  /// The peer asks for slots. Returns false if it has them.
  [[nodiscard]] bool lend() noexcept;
  /// The peer asks for something to be done, in a slot. Returns false if that makes no sense.
  [[nodiscard]] bool asked(const device_message& said) noexcept;
  [[nodiscard]] bool is_busy() const noexcept { return serving_ != 0; }

 private:
  class shared_memory;
  struct closed_on_worker {
    void operator()(shared_memory* last) const noexcept;
  };
  // The peer's request in a slot. The peer may send the next one as soon as it has the answer, before this end has seen
  // the answer complete.
  struct service {
    bool runs = false;
    bool has_answered = false;
    std::optional<device_message> next;
  };

  void begin(task<> what);
  void served() noexcept;
  [[nodiscard]] task<> lend_to_peer();
  [[nodiscard]] task<> lend_slots();
  [[nodiscard]] std::span<std::byte> lent_slot(std::size_t slot) const noexcept;
  [[nodiscard]] static std::span<std::byte> part_of(const shared_memory* shared, const device_message& asked,
                                                    const mr::memory_device& device) noexcept;
  [[nodiscard]] task<> serve(device_message request);
  [[nodiscard]] task<mr::detail::device_access> carry_out(const device_message& asked);
  [[nodiscard]] task<mr::detail::device_access> copy_for_peer(const device_message& asked);
  [[nodiscard]] mr::detail::device_access begin(const device_message& asked, mr::usage purpose,
                                                mr::detail::device_key_use& use) const noexcept;
  [[nodiscard]] task<mr::detail::device_access> persist(const device_message& asked);
  [[nodiscard]] task<mr::detail::device_access> open_share(const device_message& asked);
  [[nodiscard]] task<> close_share();

  connection_state& state_;
  device_messages& messages_;
  connection_end& end_;
  bool lends_ = false;  // the peer has asked for slots here
  bool has_lent_ = false;
  staging_memory lent_slots_;  // empty if parts of regions cannot be lent: then the slots are a pool buffer
  exposure lent_;
  std::shared_ptr<shared_memory> shared_;  // memory that the peer shares for its operation; copies hold it too
  std::array<service, device_message::slots> services_;
  std::size_t serving_ = 0;  // requests in progress
};

}  // namespace weft::net
