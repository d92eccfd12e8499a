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

/// The program's memory for a recv_into_operation, to which a message is copied. From hold() until let_go() a buffer is
/// in use, and the regions behind slices stay registered.
class receive_target {
 public:
  /// Refers to the memory of recv_into()'s sink.
  explicit receive_target(const sink& memory) noexcept;
  receive_target(receive_target&& other) noexcept
      : whole_(other.whole_), one_(other.one_), several_(other.several_), is_list_(other.is_list_) {}
  receive_target& operator=(receive_target&&) = delete;
  ~receive_target() {
    if (is_held_) [[unlikely]]
      let_go();
  }

  /// Whether hold() would succeed. If so, a message may be stored at once, without hold().
  [[nodiscard]] bool may_hold(const connection_state& state) noexcept;
  /// Holds the memory for one message, or yields why this is not possible.
  [[nodiscard]] std::optional<error> hold(const connection_state& state);
  /// Ends hold(). Does nothing if the memory is not held.
  void let_go() noexcept;
  /// The size of all parts together, in bytes.
  [[nodiscard]] std::size_t size() const noexcept { return mr::detail::total_size(parts()); }
  /// Copies a message that fits. False if a file behind the memory has become shorter; part of the message may be in
  /// place then.
  [[nodiscard]] bool store(std::span<const std::byte> message, const connection_state& state) noexcept;

  std::optional<receipt> said;  ///< the receipt of the stored message; empty until there is one

 private:
  [[nodiscard]] std::span<const mr::slice> parts() const noexcept {
    if (!is_list_) return {&one_, 1};
    return is_held_ ? std::span(held_).first(several_.size()) : several_;
  }

  mr::buffer* whole_ = nullptr;
  mr::slice one_;  // the memory, unless that is a list; for a buffer, set by may_hold()
  std::span<const mr::slice> several_;
  // A copy of the list, because the program may change or destroy the list while its operation waits.
  std::array<mr::slice, capabilities().max_parts> held_{};
  bool is_list_ = false;
  bool is_held_ = false;
  mr::pin pin_;  // pins the buffer while it is held
};

}  // namespace weft::net
