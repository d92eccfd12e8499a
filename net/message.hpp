// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace weft::net {

/// A message that a peer has sent. Its payload is pool memory: keep it, forward it (`peer.send(std::move(m.payload))`),
/// or let it go. While it is kept it counts against the receive budget.
class message {
 public:
  explicit message(mr::buffer content) noexcept : payload(std::move(content)) {}

  mr::buffer payload;  ///< its size is the message's

  [[nodiscard]] std::size_t size() const noexcept { return payload.size(); }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return payload.bytes(); }
};

}  // namespace weft::net
