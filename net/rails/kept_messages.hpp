// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/rails/entry.hpp>

#include <cstddef>
#include <vector>

namespace weft::net::rails {

/// Copies of messages that the peer may not have yet, although their sends have completed. If their rail ends, those
/// that have not arrived are sent again. The oldest copy is dropped first.
class kept_messages {
 public:
  /// Keeps up to `count` messages in `room`. Throws std::bad_alloc.
  void begin(mr::buffer room, std::size_t count);

  /// Copies a message, and returns the copy's entry; null if there is no room, or the message is not in host memory.
  [[nodiscard]] entry* keep(const entry& of) noexcept;
  /// Drops the oldest message, whose entry is `oldest`.
  void drop(const entry& oldest) noexcept;
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Whether more than half of the room or of the places is taken, so that the peer should be asked what has arrived.
  [[nodiscard]] bool is_half_full() const noexcept { return 2 * count_ > all_.size() || 2 * used() > room_.size(); }

 private:
  struct kept {
    work_request work;
    entry item;
    mr::slice words{};
    std::size_t begin = 0;  // offset in room_
  };

  [[nodiscard]] std::size_t used() const noexcept;
  [[nodiscard]] bool find_room(std::size_t bytes) noexcept;

  std::vector<kept> all_;  // a ring, as is room_
  std::size_t oldest_ = 0;
  std::size_t count_ = 0;
  mr::buffer room_;
  std::size_t next_ = 0;  // offset in room_ of the next message's bytes
};

}  // namespace weft::net::rails
