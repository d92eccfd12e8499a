// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/connection_state.hpp>
#include <weft/net/connection/operation_owner.hpp>
#include <weft/net/connection/staging_memory.hpp>
#include <weft/net/link/owner_message.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>

namespace weft::net {

/// Sends this end's owner_messages. Each is packed at a place of its own in registered memory: one place for each
/// slot's request, one for each slot's answer, and two for the set-up of slots.
class owner_messages {
 public:
  static constexpr std::size_t ask_place = 2 * owner_message::slots;
  static constexpr std::size_t memory_place = ask_place + 1;
  static constexpr std::size_t request_place(std::size_t slot) noexcept { return slot; }
  static constexpr std::size_t answer_place(std::size_t slot) noexcept { return owner_message::slots + slot; }

  owner_messages(connection_state& state, operation_owner& owner) noexcept : state_(state), owner_(owner) {}

  /// Makes the memory of the messages, unless it exists. Throws weft::error.
  task<> prepare();
  [[nodiscard]] bool are_prepared() const noexcept { return static_cast<bool>(memory_); }
  /// Sends a message from `place`. Requires prepare().
  task<> post(std::size_t place, owner_message what);
  /// An empty slice of registered memory.
  [[nodiscard]] mr::slice nothing() const { return memory_.slice(0, 0); }

 private:
  connection_state& state_;
  operation_owner& owner_;
  staging_memory memory_;
  bool is_finding_ = false;
  event found_;
};

}  // namespace weft::net
