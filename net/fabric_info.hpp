// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::net {

/// A port of an RDMA device: ibv_query_port(3).
struct rdma_port_info {
  std::uint8_t number = 0;              ///< from 1 on
  bool active = false;                  ///< it has a link, and the network takes its packets
  std::uint32_t active_mtu = 0;         ///< payload of its packets, in bytes; 0: not known
  std::uint32_t max_mtu = 0;            ///< the largest MTU that the device supports; 0: not known
  std::uint64_t max_message_bytes = 0;  ///< of one operation
};

/// To whom connection::expose() opens memory on an RDMA device.
enum class exposure_reach : std::uint8_t {
  nobody,           ///< the device has no memory windows: register a region, and send its key
  all_connections,  ///< every peer of the device, and only with verbs_options::allow_shared_windows
  one_connection,   ///< the peer that it is exposed to
};

/// The limits of an RDMA device, and what connections over it can do: ibv_query_device(3), and docs/rdma-devices.md.
struct rdma_device_info {
  std::string firmware{};              ///< its version, as the vendor writes it
  std::uint32_t vendor = 0;            ///< the vendor: vendor_id of ibv_query_device(3)
  std::uint32_t part = 0;              ///< the adapter: vendor_part_id
  std::uint32_t hardware_version = 0;  ///< the revision of the adapter: hw_ver
  std::uint32_t capability_flags = 0;  ///< the bits of ibv_device_cap_flags
  bool is_iwarp = false;               ///< an RNIC; else InfiniBand or RoCE
  int numa_node = -1;                  ///< the NUMA node next to the device; -1: not known
  std::uint64_t max_queue_pairs = 0;   ///< of all processes together, as are the other limits on numbers of objects
  std::uint64_t max_queue_depth = 0;   ///< requests in a queue pair
  std::uint64_t max_completion_queues = 0;            ///< of all processes
  std::uint64_t max_completions = 0;                  ///< in a completion queue
  std::uint64_t max_regions = 0;                      ///< of all processes
  std::uint64_t max_region_bytes = 0;                 ///< of one region
  std::uint64_t max_windows = 0;                      ///< memory windows of all processes
  std::uint64_t max_shared_receive_queues = 0;        ///< of all processes; 0: it has none
  std::uint64_t max_shared_receives = 0;              ///< in a shared receive queue
  std::uint64_t max_parts = 0;                        ///< elements of a scatter/gather list
  std::uint64_t max_read_parts = 0;                   ///< elements of a read's scatter/gather list
  std::uint64_t max_reads = 0;                        ///< reads that a peer may have outstanding in a queue pair
  std::uint64_t max_outgoing_reads = 0;               ///< reads that this side may have outstanding in a queue pair
  bool atomics = false;                               ///< capabilities::atomics, if the peer's device has them as well
  bool write_immediate = false;                       ///< capabilities::write_immediate
  bool shared_receives = false;                       ///< device::share_receives()
  bool on_demand = false;                             ///< registration_options::on_demand
  bool dmabuf = false;                                ///< registration_options::dmabuf
  exposure_reach exposures = exposure_reach::nobody;  ///< the peers to which connection::expose() opens memory
  std::vector<rdma_port_info> ports{};                ///< in the order of their numbers
  /// How weft takes the device to differ from others: traits by name and value, for a report to weft's authors, who may
  /// rename traits in any release.
  std::vector<std::pair<std::string, std::string>> traits{};
};

/// A fabric that this build knows, or was built without.
struct fabric_info {
  std::string name{};     ///< as device::open() takes it: "shm", "iwarp", "verbs:mlx5_0", "fabric:efa"; "verbs"
                          ///< or "fabric" if none is found
  std::string why_not{};  ///< why it cannot be opened, for a person; empty if it can be
  std::optional<rdma_device_info> rdma{};  ///< set for an RDMA device that can be opened
};

}  // namespace weft::net
