// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/runtime/task.hpp>

#include <memory>
#include <optional>
#include <utility>

namespace weft::net {

class link_keys;

/// A range of a region that one peer may use: what connection::bind() yields. Move-only; destroying it revokes the key.
///
/// While it lives the region stays registered: region::release() is errc::busy, and a region that owns its memory goes
/// when its last window does. It may outlive its connection, whose end revokes the key as well; so does the peer's
/// send_options::invalidate. On the connection's executor; destroyed on another thread, it is handed there, soon. See
/// ibv_bind_mw(3).
class window {
 public:
  window() noexcept = default;
  window(window&& other) noexcept = default;
  window& operator=(window&& other) noexcept;
  ~window();

  /// What to send to the peer.
  [[nodiscard]] const mr::remote_region& remote() const noexcept { return *remote_; }

  /// Revokes the key and lets the region go: the peer touches it no more. errc::wrong_thread elsewhere than on the
  /// connection's executor.
  [[nodiscard]] task<> unbind();

 private:
  friend class connection_core;
  window(std::shared_ptr<link_keys> keys, mr::region_pin region, const mr::remote_region& remote) noexcept
      : keys_(std::move(keys)), region_(std::move(region)), remote_(remote) {}
  void drop() noexcept;

  std::shared_ptr<link_keys> keys_;  // null: nothing to revoke
  mr::region_pin region_;
  std::optional<mr::remote_region> remote_;
};

}  // namespace weft::net
