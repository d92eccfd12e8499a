// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/mr/pool.hpp>
#include <weft/net/connection.hpp>
#include <weft/net/listener.hpp>
#include <weft/net/options.hpp>
#include <weft/net/shared_receives.hpp>
#include <weft/net/statistics.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::net {

class device_state;
class transport;
struct found_transport;

/// One or more fabrics that reach peers, with a protection domain and a pool of registered memory.
///
/// A program opens one, which must outlive the program's executors and everything made from it. Operations on a device
/// that was moved from fail with errc::invalid_argument.
///
/// Thread-safe; tasks of any executor may await its operations. A connection, a listener and shared receives belong to
/// the executor of the task that has awaited them.
class device {
 public:
  /// Opens a transport by name: "verbs:NAME" for the RDMA device of that name (see ibv_devices(1)), "verbs:ADDRESS" for
  /// the one with that address ("verbs:10.0.0.2", "verbs:fd77::1"), "verbs" for the first that is ready, "verbs:*" for
  /// all that are, as rails (see below), "iwarp" for iWARP in user space over TCP, "shm" for memory shared with
  /// processes of this machine, "fabric:PROVIDER" for a provider of libfabric (docs/fabric.md), "auto" for "shm,verbs"
  /// where an RDMA device is ready, else "shm,iwarp" (without shm if shm_options::automatic is false). A name of
  /// add_transport() works as well.
  ///
  /// Over "shm" an address is one of this machine's, and reaches processes of the same user and network namespace; or
  /// it is "unix:PATH", a socket file whose permissions say who may connect.
  ///
  /// A list opens one device of several fabrics, at most mr::max_fabrics: "verbs:mlx5_0,verbs:mlx5_1,iwarp". It has one
  /// pool and one domain: memory is registered with all fabrics or with none, and a descriptor names it on each.
  /// connect() uses the first fabric that reaches the peer (connection::fabric() names it), and listen() takes peers
  /// from all. The domain of several fabrics offers what every one of them can do, and memory windows if any of them
  /// has them. It has no requested keys and no regions of several ranges, and shared receives exist once for each
  /// fabric. "shm" and "iwarp" share one domain, so a device of these two is not limited in these ways.
  ///
  /// Rails are joined by "+": "verbs:mlx5_0+verbs:mlx5_1+iwarp". A connection then has a link over each, spreads large
  /// transfers over them and survives the loss of one; see docs/rails.md. connect() takes an address for each,
  /// "10.0.0.2:7471+10.1.0.2:7471", or one of them, over which the peer names the others; listen() takes one for each,
  /// or one for all. Rails join, and come back, for as long as the listener is open. "iwarp" may occur several times,
  /// for several networks. A group of rails is an element of a list like any other: "shm,verbs:mlx5_0+verbs:mlx5_1".
  /// Receives are not shared over rails.
  ///
  /// Throws weft::error: errc::invalid_argument for a list that names a transport twice, for too many fabrics, and for
  /// rails of "shm"; errc::not_supported for a name that neither this build nor add_transport() knows (the error lists
  /// the known ones), for an RDMA device that this machine does not have, and for "auto" if the machine has no RDMA
  /// device and the build no iwarp.
  [[nodiscard]] static device open(std::string_view name, const device_options& options = {});

  /// Opens a device over a transport that was made elsewhere, for instance by a test on failing libraries. Such a
  /// transport has its own options; the transports' options in device_options do not apply.
  [[nodiscard]] static device open(std::unique_ptr<transport> made, const device_options& options = {});

  device(device&&) noexcept = default;
  device& operator=(device&&) noexcept = default;
  ~device();

  /// The fabrics in use: "iwarp", "verbs:mlx5_0,iwarp".
  [[nodiscard]] std::string_view name() const noexcept;
  /// Why "auto" did not use an RDMA device that is there: "rxe0 cannot be opened: Permission denied". Empty if it used
  /// one, if there is none, or if the device was named. Worth a line in a server's log, because the traffic goes over
  /// TCP.
  [[nodiscard]] std::string_view passed_over() const noexcept;

  /// A buffer of the device's pool, registered already: pool().allocate().
  mr::allocate_operation allocate(std::size_t bytes, mr::budget which = mr::budget::send,
                                  std::source_location where = std::source_location::current()) {
    return pool().allocate(bytes, which, where);
  }
  /// A buffer of the device's pool if one is free, without waiting: pool().try_allocate().
  [[nodiscard]] std::optional<mr::buffer> try_allocate(std::size_t bytes, mr::budget which = mr::budget::send,
                                                       std::source_location where = std::source_location::current()) {
    return pool().try_allocate(bytes, which, where);
  }
  /// Registers memory of the program's own: domain().register_memory().
  task<mr::region> register_memory(std::span<std::byte> memory, mr::registration_options options);
  /// Registers several ranges, which peers see as one. `ranges` must live until the call returns.
  task<mr::region> register_memory(std::span<const std::span<std::byte>> ranges, mr::registration_options options);
  /// Registers memory that the region then owns.
  template <mr::memory_owner Owner>
  task<mr::region> register_memory(Owner&& owner, mr::registration_options options)
    requires(!std::is_reference_v<Owner>)
  {
    if (state_ == nullptr) return refuse_registration();
    return domain().register_memory(std::forward<Owner>(owner), options);
  }

  /// The protection domain in which the device's memory is registered, for what the calls above do not offer.
  [[nodiscard]] mr::domain& domain();
  /// The pool that allocate() takes from, for what the calls above do not offer, and for statistics.
  [[nodiscard]] mr::pool& pool();

  /// A snapshot of its counters: connections and set-ups, so far and now.
  [[nodiscard]] device_statistics statistics() const;

  /// Connects to "HOST:PORT" or "[IPV6]:PORT", trying each address of a name in turn, within the one set_up_timeout:
  /// each address has its share of the time left. If all fail, the error gives the reason for each. The error says
  /// which step failed: errc::timed_out, errc::peer_rejected, errc::invalid_address, errc::protocol_error (no iWARP
  /// peer there), or the system's error. ENOBUFS means that the peer has no receives left or already has its maximum of
  /// connections, EMFILE that it has no descriptors left. Thrown at once: errc::invalid_argument for options that no
  /// connection can have, errc::no_memory if the pool can never hold the receives of this end. See rdma_connect(3), RFC
  /// 6581.
  task<connection> connect(std::string address, connection_options options = {});

  /// Makes receives that connections of this device and the calling executor can share. Waits for the pool's memory:
  /// errc::timed_out after shared_receive_options::set_up_timeout. errc::no_memory at once for more than the pool may
  /// have; errc::invalid_argument for a depth or size that no receives can have; errc::not_supported if a transport
  /// cannot share receives.
  task<shared_receives> share_receives(shared_receive_options options = {});

  /// Listens on "HOST:PORT", at the first address of a name that is this machine's; port 0 lets the system choose
  /// (listener::address()). ":PORT" and "[::]:PORT" stand for all of this machine's addresses, "0.0.0.0:PORT" for its
  /// IPv4 addresses. EADDRINUSE if another program has the port; with several fabrics, only if peers would then reach
  /// that program: if it has the port over shared memory, or over the last of the other fabrics that can listen. A port
  /// taken on any further fabric is only reported. See rdma_listen(3).
  task<listener> listen(std::string address, listener_options options = {});

 private:
  friend device open_found(std::vector<found_transport> found, const device_options& options);
  explicit device(std::shared_ptr<device_state> state) noexcept;
  [[nodiscard]] const std::shared_ptr<device_state>& checked() const;
  static task<mr::region> refuse_registration();

  weft::detail::sole_handle<std::shared_ptr<device_state>, "a device"> state_;
};

}  // namespace weft::net
