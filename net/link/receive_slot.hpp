// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/net/link/linked_queue.hpp>
#include <weft/net/link/transport.hpp>

#include <cstddef>
#include <vector>

namespace weft::net {

/// A receive and its buffer.
///
/// Who may touch its memory:
///   posted    the transport
///   arrived   the connection in whose inbox it is
///   empty     nobody: the message has been received, and there is no memory for another yet
struct receive_slot {
  receive_work work;
  mr::buffer memory;  // empty in the state `empty`
  arrival what;       // describes the message that has arrived
  receive_slot* next = nullptr;

  /// The bytes of a message that has just arrived here.
  [[nodiscard]] std::span<const std::byte> content_of(const arrival& message) const noexcept {
    return (message.in_place.empty() ? work.memory.bytes() : message.in_place).first(message.bytes);
  }
  /// Points the work at the first `bytes` bytes of the memory.
  void prepare(std::size_t bytes) {
    memory.resize(bytes);
    work.memory = memory.slice();
  }
};

/// The receives of a connection that shares none. Made before the set-up.
struct own_receives {
  std::vector<receive_slot> slots;  ///< prepared, and numbered one after another
};

/// A FIFO of slots.
using receive_slot_queue = linked_queue<receive_slot, &receive_slot::next>;

}  // namespace weft::net
