// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/options.hpp>
#include <weft/net/verbs/async_events.hpp>
#include <weft/net/verbs/calls.hpp>
#include <weft/net/verbs/empty_requests.hpp>
#include <weft/net/verbs/traits.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::net::verbs {

/// The names of the RDMA devices of this machine, as ibv_devices(1) lists them. Empty if there are none, or if they
/// cannot be listed.
[[nodiscard]] std::vector<std::string> device_names(rdma_calls& library);

/// An opened RDMA device with a protection domain, shared by everything on this device. Thread-safe; immutable after
/// be_fabric(), except for the audience of its events, and for what is known about empty requests.
class device {
 public:
  /// Opens the device with that name or IP address ("10.0.0.2"); with an empty name, the first that has an active port.
  /// Throws weft::error: errc::not_supported if there is no such device, with the names of the devices that there are.
  device(rdma_calls& library, std::string_view name, const verbs_options& options = {});
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  ~device();

  /// Its index among the fabrics of net::device: mr::domain::fabric().
  [[nodiscard]] std::size_t fabric() const noexcept { return fabric_; }
  void be_fabric(std::size_t place) noexcept { fabric_ = place; }

  [[nodiscard]] const verbs_options& options() const noexcept { return options_; }
  [[nodiscard]] rdma_calls& calls() const noexcept { return calls_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }  ///< "mlx5_0"
  [[nodiscard]] ibv_context* context() const noexcept { return context_; }
  [[nodiscard]] ibv_pd* pd() const noexcept { return pd_; }
  [[nodiscard]] const ibv_device_attr& limits() const noexcept { return limits_; }
  /// The operations that support on-demand paging on a reliable connection, as IBV_ODP_SUPPORT_* bits; 0: none.
  [[nodiscard]] std::uint32_t on_demand_operations() const noexcept { return on_demand_operations_; }
  /// Whether mr::everything() can be registered: implicit on-demand paging.
  [[nodiscard]] bool pages_everything() const noexcept { return pages_everything_; }
  [[nodiscard]] bool has_dmabuf() const noexcept { return has_dmabuf_; }
  /// Whether the device and weft's libraries have FLUSH, by which peers make their writes to persistent memory
  /// persistent.
  [[nodiscard]] bool has_flush() const noexcept { return (operations_ & with_flush) != 0; }
  /// The same of ATOMIC WRITE.
  [[nodiscard]] bool has_atomic_write() const noexcept { return (operations_ & with_atomic_write) != 0; }
  /// The operations for rdma_calls::create_qp_ex().
  [[nodiscard]] std::uint64_t operations() const noexcept { return operations_; }
  /// The NUMA node nearest to the device; -1 if none is known, as with software devices.
  [[nodiscard]] int numa_node() const { return calls_.numa_node(name_); }
  /// The largest message of its ports, in bytes.
  [[nodiscard]] std::uint32_t max_message_bytes() const noexcept { return max_message_bytes_; }
  /// Whether a port was active when the device was opened.
  [[nodiscard]] bool is_active() const noexcept { return active_; }
  [[nodiscard]] const device_traits& traits() const noexcept { return traits_; }
  /// The device's own addresses of a family, AF_INET or AF_INET6, without link-local ones: those in its GID tables, or
  /// of the network interface below an RNIC.
  [[nodiscard]] std::vector<socket_address> addresses(int family) const;
  /// Whether a connection manager's id, which has an ibv_context of its own, is on this device.
  [[nodiscard]] bool is_that_of(const rdma_cm_id& id) const noexcept;
  [[nodiscard]] async_audience& audience() const noexcept { return audience_; }
  [[nodiscard]] verbs::empty_requests& empty_requests() const noexcept { return empty_requests_; }

 private:
  [[nodiscard]] bool has_address(const socket_address& wanted) const;
  [[nodiscard]] int query(ibv_transport_type transport) noexcept;
  void probe_memory() noexcept;
  [[nodiscard]] bool can_allocate_window() noexcept;
  void close() noexcept;

  rdma_calls& calls_;
  const verbs_options options_;
  std::string name_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_device_attr limits_{};
  device_traits traits_;
  std::uint32_t on_demand_operations_ = 0;
  bool pages_everything_ = false;
  bool has_dmabuf_ = false;
  std::uint64_t operations_ = 0;
  std::uint32_t max_message_bytes_ = 0;
  bool active_ = false;  // a port was active when the device was opened
  mutable async_audience audience_;
  mutable verbs::empty_requests empty_requests_;
  std::size_t fabric_ = 0;
};

}  // namespace weft::net::verbs
