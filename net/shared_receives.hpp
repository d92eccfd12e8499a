// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/options.hpp>
#include <weft/runtime/core/sole_handle.hpp>

#include <memory>

namespace weft::net {

class device_state;
class shared_receive_group;

/// Receives that many connections draw from, instead of receive_depth of their own: what device::share_receives()
/// yields. Move-only. Name it in connection_options::receives, for connect() and accept().
///
/// The memory for what peers send is that of `depth` messages, however many connections there are; on a device of
/// several domains, such as "shm,verbs:mlx5_0", of as many for each, and those share receives whose fabrics do. Peers
/// that are weft still have receive_depth credits each, which come back as messages are received.
///
/// The connections share fate. If messages are not received on one, or their payloads are kept until the pool is empty,
/// the others may find no receive either: their peers' messages, and the end of a close, then wait on the way until
/// receives are free, as those of peers without credits do (connection_options::overdue_after). With iwarp the
/// connections get receives in the order in which they ran out. Over a device there is no such order, because its peers
/// try again after a while (RNR). Soft-RoCE counts RNR as silence, so it declares a peer dead that finds no receive for
/// connection_options::dead_peer_after.
///
/// Belongs to the executor on which it was made, which outlives it, and to connections there. Connections keep using it
/// after it was destroyed; the last one releases it. Destroyed on another thread, it is handed to its executor. See
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
  friend std::shared_ptr<shared_receive_group> find_shared_receives(const connection_options& options,
                                                                    const device_state& device);
  explicit shared_receives(std::shared_ptr<shared_receive_group> state) noexcept;
  void release() noexcept;

  weft::detail::sole_handle<std::shared_ptr<shared_receive_group>, "shared receives"> state_;
};

}  // namespace weft::net
