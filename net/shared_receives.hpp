// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/sole_handle.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace weft::net {

class shared_receive_state;

/// How to share receives.
struct shared_receive_options {
  std::uint32_t receive_size = 4096;                ///< the largest message that the connections take, in bytes
  std::uint16_t depth = 256;                        ///< messages that have come on any of them, at most max_depth
  std::chrono::milliseconds set_up_timeout{10000};  ///< for the pool to have the memory
};
static_assert(std::is_trivially_destructible_v<shared_receive_options>);

/// Receives that many connections draw from, instead of receive_depth of their own: what device::share_receives()
/// yields. Move-only. Name it in connection_options::receives, for connect() and accept().
///
/// However many connections there are, the memory for what their peers send is that of `depth` messages. Peers that are
/// weft still have receive_depth credits each, which come back as messages are received.
///
/// The connections share fate. Where messages are not received on one, or their payloads are kept until the pool has no
/// more, the others may find no receive either: their peers' messages, and the end of a close, then wait on the way, as
/// those of peers without credits do (connection_options::overdue_after), until receives come free. With iwarp the
/// connections get receives in the order in which they ran out. Over a device there is no such order, because its peers
/// try again after a while (RNR); and Soft-RoCE counts RNR as silence, so that it declares a peer dead that finds no
/// receive for connection_options::dead_peer_after.
///
/// On the executor on which it was made, which outlives it, and for connections on it. Destroying it takes it from no
/// connection: the last that uses it lets it go. Destroyed on another thread, it is handed to its executor. See
/// ibv_create_srq(3).
class shared_receives {
 public:
  shared_receives(shared_receives&& other) noexcept;
  shared_receives& operator=(shared_receives&& other) noexcept;
  ~shared_receives();

  /// The options of share_receives(). errc::invalid_argument if these were moved from.
  [[nodiscard]] const shared_receive_options& options() const;

 private:
  friend class device;
  friend class shared_receive_state;
  explicit shared_receives(std::shared_ptr<shared_receive_state> state) noexcept;
  void release() noexcept;

  weft::detail::sole_handle<std::shared_ptr<shared_receive_state>, "shared receives"> state_;
};

}  // namespace weft::net
