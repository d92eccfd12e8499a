// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>

#include <optional>
#include <utility>

namespace weft::net {

class lending;

/// A pool buffer, or a part of a region, that one peer may use: what connection::expose() yields. Move-only.
///
/// Destroying it revokes the key, and returns the buffer to its pool. An RDMA device takes its time for that, and a
/// worker waits for it: the buffer returns once it is done, and revoke() waits until then. See ibv_bind_mw(3).
///
/// If the peer uses a key that was revoked, the connection ends, with every other operation on it, even if the access
/// was already on its way. So drop or revoke an exposure once it is known that the peer is done: it said so in a
/// message, or the connection is over. A caller that stops waiting for a peer that may still write, at a timeout,
/// retires it instead:
///
///     auto open = co_await peer.expose(std::move(room), mr::usage::write_dst);
///     try {
///       co_await with_timeout(100ms, ask(peer, open.remote()));
///     } catch (const error&) {
///       open.retire();  // the peer may still write, and the connection goes on
///       throw;
///     }
///
/// It may outlive its connection, whose end revokes the key as well; so does the peer's send_options::invalidate. While
/// a part of a region is exposed the region stays registered: region::release() is errc::busy, and a region that owns
/// its memory goes when its last exposure does. It belongs to the connection's executor. If it is destroyed or retired
/// on another thread, that happens a little later, on that executor.
class exposure {
 public:
  exposure() noexcept = default;
  exposure(exposure&& other) noexcept
      : lending_(std::move(other.lending_)),
        buffer_(std::move(other.buffer_)),
        region_(std::move(other.region_)),
        remote_(std::exchange(other.remote_, std::nullopt)) {}
  exposure& operator=(exposure&& other) noexcept;
  ~exposure();

  /// What to send to the peer. errc::invalid_argument if the exposure is empty.
  [[nodiscard]] const mr::remote_region& remote() const {
    if (!remote_) [[unlikely]]
      weft::detail::throw_misuse(errc::invalid_argument, "use the key of an exposure that is empty");
    return *remote_;
  }
  /// The buffer that is exposed; empty if it is a part of a region.
  [[nodiscard]] const mr::buffer& memory() const noexcept { return buffer_; }

  /// Revokes the key, releases a region, and yields the buffer if it is one: the peer no longer touches it, unless it
  /// breaks the rules and had mapped it (mr::registration_options::direct; docs/shm.md). A stop does not interrupt it;
  /// the exposure is empty meanwhile. errc::wrong_thread elsewhere than on the connection's executor.
  task<mr::buffer> revoke();

  /// Leaves key and memory to the connection, which keeps both until the peer revokes the key
  /// (send_options::invalidate), the program says that the peer is done (connection::confirm_retired()), or the
  /// connection ends; at once if one of these has come before. Until then the peer may use the memory as before. A
  /// buffer counts as in use in its pool, and all of it in connection_statistics::retired: a peer that never confirms
  /// keeps it for as long as the connection lives. The exposure is empty then; remote() still tells the key. Allocates
  /// nothing.
  void retire() noexcept;

 private:
  friend class exposures;
  exposure(lending* lent, mr::buffer memory, mr::region_pin region, const mr::remote_region& remote) noexcept
      : lending_(lent), buffer_(std::move(memory)), region_(std::move(region)), remote_(remote) {}
  void drop() noexcept;
  /// Leaves this empty.
  [[nodiscard]] lending* take_lending() noexcept;

  weft::detail::sole_handle<lending*, "an exposure"> lending_;  // owned; null: nothing to revoke
  mr::buffer buffer_;
  mr::region_pin region_;
  std::optional<mr::remote_region> remote_;
};

}  // namespace weft::net
