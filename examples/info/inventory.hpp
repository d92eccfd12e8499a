// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabrics.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "machine.hpp"

namespace info {

/// A row of a port's table of addresses that is not empty.
struct gid {
  unsigned index = 0;
  std::string value;      ///< "fe80:0000:0000:0000:0277:00ff:fe00:0001"
  std::string type;       ///< "RoCE v2", "IB/RoCE v1"; empty where the kernel does not say
  std::string interface;  ///< the network interface that it is of, of RoCE
  std::string address;    ///< the IP address that it holds: "10.0.0.7", "fd77::1"; empty for none
  bool link_local = false;
};

/// How the active MTU of a port is known.
enum class mtu_source : std::uint8_t { unknown, device, interface };

struct rdma_port {
  unsigned number = 0;
  std::string state;           ///< "ACTIVE", "DOWN", "INIT", "ARMED"
  std::string physical_state;  ///< "LinkUp", "Disabled", "Polling"
  std::string link_layer;      ///< "Ethernet", "InfiniBand"
  std::string rate;            ///< "100 Gb/sec (4X EDR)"
  std::uint32_t active_mtu = 0;
  mtu_source mtu_is_from = mtu_source::unknown;
  std::vector<gid> gids;
  std::vector<std::string> interfaces;  ///< network interfaces of its addresses

  [[nodiscard]] bool is_active() const noexcept { return state == "ACTIVE"; }
};

enum class rdma_kind : std::uint8_t { infiniband, roce, iwarp, other };

struct rdma_device {
  std::string name;
  rdma_kind kind = rdma_kind::other;
  std::string firmware;
  std::string guid;
  std::string board;
  int numa_node = -1;
  std::string file;  ///< "/dev/infiniband/uverbs0"; empty if ib_uverbs has none for it
  bool file_is_there = false;
  std::string kernel_driver;          ///< of the device below: "mlx5_core"; empty for a software device
  std::string kernel_driver_version;  ///< empty for a driver of the kernel's own, which has none
  int open_failure = 0;               ///< errno of opening the file
  std::string why_not;                ///< why weft cannot open it; empty
  bool is_listed = false;             ///< by libibverbs
  std::optional<weft::net::rdma_device_info> limits;
  std::vector<rdma_port> ports;

  /// What libibverbs says of a port; null: nothing.
  [[nodiscard]] const weft::net::rdma_port_info* find_limits(unsigned port) const noexcept;
};

struct network_interface {
  std::string name;
  std::string state;  ///< "up", "down", "unknown"
  bool administratively_up = false;
  bool is_infiniband = false;  ///< IPoIB
  std::uint32_t mtu = 0;
  std::int64_t megabits = 0;  ///< per second; 0: not known
  std::string hardware_address;
  std::vector<interface_address> addresses;
};

struct huge_page_size {
  std::uint64_t bytes = 0;
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};

/// All that there is.
struct inventory {
  std::string version;
  std::string compiler;
  std::string build;
  bool with_verbs = false;
  bool with_iwarp = false;
  std::string kernel;
  std::string distribution;   ///< "Debian GNU/Linux 12 (bookworm)"; empty: not known
  std::string architecture;   ///< "x86_64"
  std::string verbs_library;  ///< the file of libibverbs in this process; empty: there is none
  driver_info driver;
  std::vector<weft::net::fabric_info> fabrics;
  std::vector<rdma_device> rdma;
  bool kernel_has_rdma = false;  ///< /sys/class/infiniband is there
  std::vector<network_interface> interfaces;
  std::vector<huge_page_size> huge_pages;
  std::string transparent_huge_pages;          ///< "always", "madvise", "never"; empty: not known
  std::optional<std::uint64_t> locked_memory;  ///< limit in bytes; empty: none
  bool may_lock_beyond_limit = false;          ///< CAP_IPC_LOCK
  std::optional<std::uint64_t> descriptors;    ///< limit; empty: none

  [[nodiscard]] const network_interface* find_interface(const std::string& name) const noexcept;
};

[[nodiscard]] inventory take_inventory(const machine& here);

[[nodiscard]] const char* name_of(rdma_kind kind) noexcept;

/// The payload of an RDMA packet that fits into the packets of an Ethernet interface with that MTU: 256 to 4096, or 0.
[[nodiscard]] std::uint32_t rdma_mtu_of(std::uint32_t interface_mtu) noexcept;

/// The soft limit in a file like /proc/self/limits: empty if it is unlimited, or not there.
[[nodiscard]] std::optional<std::uint64_t> soft_limit(const machine& here, std::string_view name);

}  // namespace info
