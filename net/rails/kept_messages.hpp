// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/rails/entry.hpp>

#include <cstddef>
#include <vector>

namespace weft::net::rails {

/// Copies of messages whose senders have been told that they are sent, and that the peer may not have yet. They are
/// sent again if their rail ends. In their order: the oldest goes first.
class kept_messages {
 public:
  /// For so many messages in that memory. Throws std::bad_alloc.
  void begin(mr::buffer room, std::size_t count);

  /// Copies a message; its entry is a copy as well. Null if there is no room for it.
  [[nodiscard]] entry* keep(const entry& of) noexcept;
  /// Lets go of the oldest one, which has that entry.
  void drop(const entry& oldest) noexcept;
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  /// Whether it is time to ask what has arrived, so that there is room for the next ones.
  [[nodiscard]] bool is_half_full() const noexcept { return 2 * count_ > all_.size() || 2 * used() > room_.size(); }

 private:
  struct kept {
    work_request work;
    entry item;
    mr::slice words{};
    std::size_t begin = 0;  // in the room
  };

  [[nodiscard]] std::size_t used() const noexcept;
  [[nodiscard]] bool find_room(std::size_t bytes) noexcept;

  std::vector<kept> all_;  // in a circle, as is the room
  std::size_t oldest_ = 0;
  std::size_t count_ = 0;
  mr::buffer room_;
  std::size_t next_ = 0;  // where the next message's bytes go
};

}  // namespace weft::net::rails
