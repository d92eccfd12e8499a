// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/capabilities.hpp>
#include <weft/net/message.hpp>
#include <weft/net/payload.hpp>
#include <weft/runtime/error.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <span>

namespace weft::net {

struct connection_state;

/// Memory of the program's that a message is copied to: that of a recv_into_operation. Nobody else uses a buffer, and
/// no region ends, from hold() until let_go().
class receive_target {
 public:
  /// Of the sink that recv_into() was given.
  explicit receive_target(const sink& memory) noexcept;
  receive_target(receive_target&& other) noexcept
      : whole_(other.whole_), one_(other.one_), several_(other.several_), is_list_(other.is_list_) {}
  receive_target& operator=(receive_target&&) = delete;
  ~receive_target() {
    if (is_held_) [[unlikely]]
      let_go();
  }

  /// Whether hold() would succeed. Then a message may be stored at once, without holding the memory.
  [[nodiscard]] bool may_hold(const connection_state& state) noexcept;
  /// Holds the memory for one message, or yields why this is not possible.
  [[nodiscard]] std::optional<error> hold(const connection_state& state);
  /// Does nothing the second time.
  void let_go() noexcept;
  /// In bytes.
  [[nodiscard]] std::size_t size() const noexcept {
    std::size_t bytes = 0;
    for (const mr::slice& part : parts()) bytes += part.size();
    return bytes;
  }
  /// Copies a message that fits. False if a file behind the memory has become shorter.
  [[nodiscard]] bool store(std::span<const std::byte> message, const connection_state& state) noexcept;

  std::optional<receipt> said;  ///< about the message; empty until there is one

 private:
  [[nodiscard]] std::span<const mr::slice> parts() const noexcept {
    if (!is_list_) return {&one_, 1};
    return is_held_ ? std::span(held_).first(several_.size()) : several_;
  }

  mr::buffer* whole_ = nullptr;
  mr::slice one_;  // the memory, if it is no list; of a buffer, since it was asked for
  std::span<const mr::slice> several_;
  // Of a list, because the program may change it, or let it go, while its operation waits.
  std::array<mr::slice, capabilities().max_parts> held_{};
  bool is_list_ = false;
  bool is_held_ = false;
  mr::pin pin_;  // of a buffer
};

}  // namespace weft::net
