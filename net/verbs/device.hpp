// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/verbs/async_events.hpp>
#include <weft/net/verbs/calls.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft::net::verbs {

/// The names of the RDMA devices of this machine, as ibv_devices(1) lists them. Empty where there is no RDMA at all.
[[nodiscard]] std::vector<std::string> device_names(rdma_calls& library);

/// What memory windows a device has: the best of ibv_alloc_mw(3) and the flags of ibv_query_device(3).
enum class window_kind : std::uint8_t {
  none,
  type_1,   ///< its key works on every connection of the protection domain; ibv_bind_mw(3) binds it and chooses the key
  type_2a,  ///< its key works on the queue pair through which it was bound, by the pair's number
  type_2b,  ///< the same, and the pair has to be of the window's protection domain
};

/// An opened RDMA device with a protection domain: what all that stands on it shares. Thread-safe, and immutable
/// but for who hears of its events.
class device {
 public:
  /// Opens the device of that name, or that has that address ("10.0.0.2"), or with no name the first that has an active
  /// port. Throws weft::error: errc::not_supported where there is none, with the names of those that there are.
  device(rdma_calls& library, std::string_view name);
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  ~device();

  [[nodiscard]] rdma_calls& calls() const noexcept { return calls_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }  ///< "mlx5_0"
  [[nodiscard]] ibv_context* context() const noexcept { return context_; }
  [[nodiscard]] ibv_pd* pd() const noexcept { return pd_; }
  [[nodiscard]] const ibv_device_attr& limits() const noexcept { return limits_; }
  /// What it can do with memory that is paged on demand, by IBV_ODP_SUPPORT_*, on a reliable connection; 0: nothing.
  [[nodiscard]] std::uint32_t on_demand_operations() const noexcept { return on_demand_operations_; }
  [[nodiscard]] bool has_dmabuf() const noexcept { return has_dmabuf_; }
  /// The NUMA node that it is next to, as sysfs says; -1: none, as with devices in software.
  [[nodiscard]] int numa_node() const;
  /// The largest message of its ports, in bytes.
  [[nodiscard]] std::uint32_t max_message_bytes() const noexcept { return max_message_bytes_; }
  /// An RNIC by RFC 5040: a read sink is open to remote writes, and the queue pair is connected by the kernel.
  [[nodiscard]] bool is_iwarp() const noexcept { return iwarp_; }
  [[nodiscard]] bool has_atomics() const noexcept { return limits_.atomic_cap != IBV_ATOMIC_NONE; }
  [[nodiscard]] window_kind windows() const noexcept;
  [[nodiscard]] bool has_windows() const noexcept { return windows() != window_kind::none; }
  /// Whether a window is of one queue pair, whose peer can also revoke it.
  [[nodiscard]] bool has_windows_of_one_peer() const noexcept {
    return has_windows() && windows() != window_kind::type_1;
  }
  /// Whether it keeps peers within the window, and not only within the region behind it.
  [[nodiscard]] bool checks_window_bounds() const noexcept { return !is_rxe(); }
  /// Whether it finds memory by the iova that it was registered with.
  [[nodiscard]] bool heeds_iova() const noexcept;
  /// The bit of ibv_wc::wc_flags, of a reliable connection's receive, that tells of an invalidated key.
  [[nodiscard]] unsigned invalidated_flag() const noexcept;
  /// Its own addresses of a family, AF_INET or AF_INET6, without link-local ones: as its tables of
  /// GIDs have them, or of the network interface below an RNIC.
  [[nodiscard]] std::vector<socket_address> addresses(int family) const;
  /// Whether a connection manager's id, which belongs to another context, is on this device.
  [[nodiscard]] bool is_that_of(const rdma_cm_id& id) const noexcept;
  /// Whether it tells of the last receive that a queue pair in ERR has taken of shared ones: InfiniBand specification,
  /// 11.6.3.1. rxe does not, and an RNIC need not.
  [[nodiscard]] bool announces_last_receive() const noexcept { return !iwarp_ && !is_rxe(); }
  /// Whether it waits for a peer that has no receive for a message, and tells it from one that does not answer: rxe
  /// does not tell, and an RNIC does not wait.
  [[nodiscard]] bool waits_for_receivers() const noexcept { return !iwarp_ && !is_rxe(); }
  /// Whether it repeats only what has to be repeated when a packet was lost: rxe does not.
  [[nodiscard]] bool repeats_requests_well() const noexcept { return !is_rxe(); }
  [[nodiscard]] async_audience& audience() const noexcept { return audience_; }

 private:
  [[nodiscard]] bool is_rxe() const noexcept;
  [[nodiscard]] bool has_address(const socket_address& wanted) const;
  [[nodiscard]] int query() noexcept;
  void probe_memory() noexcept;
  void close() noexcept;

  rdma_calls& calls_;
  std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_device_attr limits_{};
  std::uint32_t on_demand_operations_ = 0;
  bool has_dmabuf_ = false;
  std::uint32_t max_message_bytes_ = 0;
  bool active_ = false;  // has a port that is
  bool iwarp_ = false;
  mutable async_audience audience_;
};

}  // namespace weft::net::verbs
