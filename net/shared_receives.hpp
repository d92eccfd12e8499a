// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/options.hpp>
#include <weft/runtime/core/sole_handle.hpp>

#include <memory>

namespace weft::net {

class device_state;
class shared_receive_group;

/// Receives that many connections draw from, instead of receive_depth of their own: the result of
/// device::share_receives(). Move-only. Name it in connection_options::receives, for connect() and accept().
///
/// They take memory for shared_receive_options::depth messages, however many connections there are. On a device of
/// several domains, such as "shm,verbs:mlx5_0", each domain has that many receives, which connections over its fabrics
/// share. Weft peers still have receive_depth credits each, which come back as messages are received.
///
/// The connections share fate. If the program does not receive the messages of one, or keeps payloads until the pool is
/// empty, the other connections may find no receive either: their peers' messages, and the end of a close, then wait
/// until receives are free, like messages of peers without credits (connection_options::overdue_after). Over shm and
/// iwarp the connections get receives in the order in which they ran out. RDMA devices have no such order, because
/// their peers retry after a while (RNR). A peer with Soft-RoCE takes RNR for silence: if it finds no receive for its
/// connection_options::dead_peer_after, it declares this end dead.
///
/// They belong to the executor on which they were made, which must outlive them, and serve the connections of that
/// executor alone. Connections keep using them after this object is destroyed; the last connection releases them. If
/// this object is destroyed on another thread, its executor releases it. See ibv_create_srq(3).
class shared_receives {
 public:
  shared_receives(shared_receives&& other) noexcept;
  shared_receives& operator=(shared_receives&& other) noexcept;
  ~shared_receives();

  /// The options of share_receives(). Throws errc::invalid_argument if the shared receives were moved from.
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
