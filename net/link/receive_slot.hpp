// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
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
class receive_slot_queue {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  void push(receive_slot& slot) noexcept {
    slot.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &slot;
    last_ = &slot;
  }
  [[nodiscard]] receive_slot& front() const noexcept { return *first_; }
  [[nodiscard]] receive_slot& pop() noexcept {
    receive_slot& slot = *first_;
    first_ = slot.next;
    return slot;
  }

 private:
  receive_slot* first_ = nullptr;
  receive_slot* last_ = nullptr;
};

}  // namespace weft::net
