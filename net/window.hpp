// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>

#include <optional>
#include <utility>

namespace weft::net {

class lending;

/// A range of a region that one peer may use: what connection::bind() yields. Move-only; destroying it revokes the key.
/// An RDMA device blocks whoever does that, so that a worker does it there, and soon; unbind() waits for it, and so
/// does whatever ends or changes the region.
///
/// While it lives the region stays registered: region::release() is errc::busy, and a region that owns its memory goes
/// when its last window does. It may outlive its connection, whose end revokes the key as well; so does the peer's
/// send_options::invalidate. A peer that uses a revoked key ends the connection: a window that the peer may still use
/// is retired, as an exposure is. On the connection's executor; destroyed or retired on another thread, it is handed
/// there, soon. See ibv_bind_mw(3).
class window {
 public:
  window() noexcept = default;
  window(window&& other) noexcept
      : lending_(std::move(other.lending_)),
        region_(std::move(other.region_)),
        remote_(std::exchange(other.remote_, std::nullopt)) {}
  window& operator=(window&& other) noexcept;
  ~window();

  /// What to send to the peer. errc::invalid_argument if this is empty: made so, or moved from.
  [[nodiscard]] const mr::remote_region& remote() const {
    if (!remote_) [[unlikely]]
      weft::detail::throw_misuse(errc::invalid_argument, "use the key of a window that is empty");
    return *remote_;
  }

  /// Revokes the key and lets the region go: the peer touches it no more. A stop does not interrupt it.
  /// errc::wrong_thread elsewhere than on the connection's executor.
  [[nodiscard]] task<> unbind();

  /// Leaves the key to the connection, which keeps the region registered until the peer is done: see
  /// exposure::retire().
  void retire() noexcept;

 private:
  friend class connection_core;
  window(lending* lent, mr::region_pin region, const mr::remote_region& remote) noexcept
      : lending_(lent), region_(std::move(region)), remote_(remote) {}
  void drop() noexcept;

  weft::detail::sole_handle<lending*, "a window"> lending_;  // owned; null: nothing to revoke
  mr::region_pin region_;
  std::optional<mr::remote_region> remote_;
};

}  // namespace weft::net
