// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_region.hpp>
#include <weft/net/link/peer_names.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>

#include <cstdint>
#include <optional>
#include <string_view>

namespace weft::net {

enum class taken : std::uint8_t;
class batch_operation;
class list_operation;
class recv_operation;
class transfer;

/// Executes the operations that are awaited on a connection: the interface of the connection's core to its operations.
/// On the core's executor.
class operation_owner {
 public:
  // A started operation belongs to the owner until it ends. stop() ends it, at once or as soon as its memory is no
  // longer used. abandon() is called when its frame is being destroyed: it withdraws the operation, or ends the program
  // if a transfer, or a list's element, is in progress on borrowed memory.
  virtual void start(transfer& item) = 0;
  /// Carries the operation out at once, and lets go of its memory, if nothing stands in the way; otherwise returns
  /// taken::no. `waiter` awaits the operation.
  [[nodiscard]] virtual taken take_now(transfer& item, weft::detail::promise_base& waiter) noexcept = 0;
  virtual void stop(transfer& item) noexcept = 0;
  virtual void abandon(transfer& item) noexcept = 0;
  virtual void start(batch_operation& all) = 0;
  virtual void stop(batch_operation& all) noexcept = 0;
  virtual void abandon(batch_operation& all) noexcept = 0;
  virtual void start(list_operation& all) = 0;
  virtual void stop(list_operation& all) noexcept = 0;
  virtual void abandon(list_operation& all) noexcept = 0;
  virtual void start(recv_operation& item) = 0;
  /// Gives `item` a message that has arrived, if there is one and no other task waits for it; otherwise returns
  /// taken::no. `waiter` awaits `item`.
  [[nodiscard]] virtual taken take_now(recv_operation& item, weft::detail::promise_base& waiter) noexcept = 0;
  virtual void stop(recv_operation& item) noexcept = 0;
  virtual void abandon(recv_operation& item) noexcept = 0;

  /// The name of the peer's memory on the connection's fabric, for work_request::remote_key. If the memory has no name
  /// there, the result is empty, and `why_not` is set. A connection with rails fills `names` in; but for device memory
  /// with a place_behind_owner it always yields an empty result, and does not set `why_not`.
  [[nodiscard]] virtual std::optional<named_place> find(const mr::remote_slice& where, peer_names& names,
                                                        std::optional<error>& why_not) const noexcept = 0;
  /// True if this end has to notify the peer of writes to memory whose owner counts them: see
  /// mr::remote_slice::counter(). If notices are then not possible, `why_not` is set.
  [[nodiscard]] virtual bool has_to_tell(std::optional<error>& why_not) const noexcept = 0;
  [[nodiscard]] virtual std::string_view peer() const noexcept = 0;

 protected:
  ~operation_owner() = default;
};

inline constexpr const char* moved_from_words = "use a connection that was moved from";

/// The peer of an operation, for dumps and traces; "no peer" if its connection was moved from.
[[nodiscard]] inline std::string_view peer_of(const operation_owner* owner) noexcept {
  return owner != nullptr ? owner->peer() : std::string_view("no peer");
}

/// The error of an operation on a connection that was moved from.
[[nodiscard]] inline error moved_from_connection() noexcept {
  return weft::detail::make_error(errc::closed, moved_from_words);
}

}  // namespace weft::net
