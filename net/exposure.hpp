// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/net/exposure_end.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/task.hpp>

#include <optional>
#include <type_traits>
#include <utility>

namespace weft::net {

class lending;

/// Options of connection::expose().
struct expose_options {
  /// When the key is revoked automatically, by the clock of the connection's executor; time_point::max(): never.
  time_point until = time_point::max();
};
static_assert(std::is_trivially_destructible_v<expose_options>);

/// A pool buffer, or a part of a region, that one peer may use: what connection::expose() yields. Move-only.
///
/// Destroying it revokes the key, and returns the buffer to its pool. An RDMA device needs time to revoke a key, and a
/// worker waits for it: the buffer returns afterwards, and revoke() waits until then. See ibv_bind_mw(3).
///
/// If the peer uses a key that was revoked, even by an access that was already on its way, the connection ends, with
/// every other operation on it; over rails (docs/rails.md) only that access fails. So drop or revoke an exposure only
/// once the peer is known to be done: it said so in a message, or the connection is over. A caller that stops waiting
/// for a peer that may still write, at a timeout, retires the exposure instead:
///
///     auto open = co_await peer.expose(std::move(room), mr::usage::write_dst);
///     try {
///       co_await with_timeout(100ms, ask(peer, open.remote()));
///     } catch (const error&) {
///       open.retire();  // the peer may still write, and the connection goes on
///       throw;
///     }
///
/// An exposure may have a deadline, at which the key is revoked automatically:
///
///     auto open = co_await peer.expose(std::move(room), mr::usage::write_dst, {.until = deadline});
///     co_await ask(peer, open.remote());
///     const auto how = co_await open.ended();  // net::exposure_end::deadline: the peer did not come
///     room = co_await open.revoke();  // at once
///
/// The connection's executor revokes the key in its next turn, which is late if the executor is busy or does not run.
///
/// An exposure may outlive its connection, whose end revokes the key, as does the peer's send_options::invalidate.
/// While a part of a region is exposed the region stays registered: region::release() is errc::busy, and a destroyed
/// region that owns its memory is deregistered once its last exposure has ended. An exposure belongs to the
/// connection's executor. Destroying or retiring it on another thread takes effect a little later, on that executor.
class exposure {
 public:
  exposure() noexcept = default;
  exposure(exposure&& other) noexcept
      : lending_(std::move(other.lending_)),
        buffer_(std::move(other.buffer_)),
        remote_(std::exchange(other.remote_, std::nullopt)),
        ended_by_(other.ended_by_) {}
  exposure& operator=(exposure&& other) noexcept;
  ~exposure();

  /// The descriptor to send to the peer, which stays after revoke() and retire(). errc::invalid_argument if the
  /// exposure was never opened, or was moved from.
  [[nodiscard]] const mr::remote_region& remote() const {
    if (!remote_) [[unlikely]]
      weft::detail::throw_misuse(errc::invalid_argument, "use the key of an exposure that is empty");
    return *remote_;
  }
  /// The buffer that is exposed; empty if a part of a region is exposed, or if the exposure is empty.
  [[nodiscard]] const mr::buffer& memory() const noexcept { return buffer_; }

  /// Revokes the key, and yields the buffer or releases the region. Afterwards the peer no longer touches the memory,
  /// unless it breaks the rules and had mapped it (mr::registration_options::direct; docs/shm.md), or lies about
  /// operations in flight over a software provider of libfabric (docs/fabric.md). A stop does not interrupt revoke();
  /// the exposure is empty meanwhile, and must outlive the task. errc::wrong_thread elsewhere than on the connection's
  /// executor.
  task<mr::buffer> revoke();

  /// Waits until the peer can no longer touch the memory, and yields the reason: the deadline, the peer, or the end of
  /// the connection. revoke() then yields the buffer at once. The wait ends as well if the program revokes or drops the
  /// exposure meanwhile; for an empty exposure it ends at once. A stop leaves the exposure as it is. errc::wrong_thread
  /// elsewhere than on the connection's executor. The exposure must exist when the task begins.
  task<exposure_end> ended();
  /// Like ended(), without waiting; exposure_end::open if the loan has not ended, or was retired. On the connection's
  /// executor.
  [[nodiscard]] exposure_end ended_by() const noexcept;

  /// Leaves key and memory to the connection, which keeps both until the peer revokes the key
  /// (send_options::invalidate), the program confirms that the peer is done (connection::confirm_retired()), the
  /// deadline comes, or the connection ends; if one of these has happened already, both are released at once. Until
  /// then the peer may use the memory. A buffer stays in use in its pool, and connection_statistics::retired counts all
  /// retired memory: without a deadline or confirmation, it may accumulate until the connection ends. The exposure is
  /// empty afterwards; remote() still yields the key. Allocates nothing.
  void retire() noexcept;

 private:
  friend class exposures;
  exposure(lending* lent, mr::buffer memory, const mr::remote_region& remote) noexcept
      : lending_(lent), buffer_(std::move(memory)), remote_(remote) {}
  void drop() noexcept;
  /// Moves the buffer into the lending, and yields the lending; the exposure is empty afterwards.
  [[nodiscard]] lending* take_lending() noexcept;

  weft::detail::sole_handle<lending*, "an exposure"> lending_;  // owned; null: nothing to revoke
  mr::buffer buffer_;
  std::optional<mr::remote_region> remote_;
  exposure_end ended_by_ = exposure_end::open;  // ended_by() of an empty exposure
};

}  // namespace weft::net
