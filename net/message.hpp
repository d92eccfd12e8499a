// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace weft::net {

/// A message that a peer has sent. Its payload is pool memory: keep it, forward it (`peer.send(std::move(m.payload))`),
/// or let it go. A peer's write with immediate data arrives as a message with that data and an empty payload. The
/// memory of a payload counts against the pool's receive budget for as long as the payload is kept.
class message {
 public:
  /// A message with this payload, and nothing besides.
  explicit message(mr::buffer content) noexcept : payload(std::move(content)) {}

  mr::buffer payload;                      ///< its size is the message's size
  std::optional<std::uint32_t> immediate;  ///< of the peer's send_options or write_options
  std::optional<std::uint64_t>
      invalidated_key;  ///< the key of one of this end's exposures, if the peer has revoked it and no longer uses it

  /// The payload's size in bytes.
  [[nodiscard]] std::size_t size() const noexcept { return payload.size(); }
  /// The payload's bytes.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return payload.bytes(); }
  /// The payload's bytes as characters; hostile until checked.
  [[nodiscard]] std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(bytes().data()), size()};
  }
};

/// A message that connection::recv_into() has stored in memory of the program's.
struct receipt {
  std::size_t bytes = 0;                           ///< the message's size; memory beyond it is unchanged
  std::optional<std::uint32_t> immediate{};        ///< as message::immediate; if from a write, `bytes` is 0
  std::optional<std::uint64_t> invalidated_key{};  ///< as message::invalidated_key
};

}  // namespace weft::net
