// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/usage.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

namespace weft {
class system_calls;
}

namespace weft::mr {

class memory_device;

/// The most fabrics of one device: enough for two rails, shared memory and TCP. A descriptor that names memory on all
/// of them still fits a small message.
inline constexpr std::size_t max_fabrics = 4;

/// The remote_place::fabric of memory that peers reach through its owner. The owner copies to and from a GPU's memory
/// for fabrics that do not reach it, and makes a file's memory persistent.
inline constexpr std::uint8_t place_behind_owner = max_fabrics;

/// The kinds of memory.
enum class memory_kind : std::uint8_t {
  host,    ///< the processor reads and writes it
  device,  ///< a device's own, such as a GPU's: the processor must not touch it
};

/// How memory is registered. An option that the transport lacks is refused before anything happens, with
/// errc::not_supported and the option's name. But promises and permissions (huge_pages, relaxed_ordering, direct) are
/// ignored.
struct registration_options {
  mr::usage usage = mr::usage::none;  ///< what local operations and peers may do with the memory
  /// The device that owns the range, whose addresses are the device's; the processor never touches the memory
  /// (memory_kind::device). Null: the range is host memory. A fabric that reaches the device uses the memory directly.
  /// For other fabrics weft stages the data through host memory, over connections with
  /// connection_options::device_memory.
  ///
  /// Not together with iova, zero_based, requested_key, disabled, on_demand, lazy, dmabuf, huge_pages, several ranges,
  /// usage::atomic_dst or usage::flush_persistent. The region keeps the device alive.
  memory_device* device = nullptr;

  /// The address that peers use for the first byte; it must equal the real address modulo the page size. See
  /// ibv_reg_mr_iova(3). An RDMA device pins the memory twice if local operations use it as well.
  std::optional<std::uint64_t> iova = std::nullopt;
  /// Peers address the region from 0 on. With an RDMA device that is an iova of 0, so the range must begin at a page.
  /// Not together with iova.
  bool zero_based = false;
  /// The key that peers use; errc::duplicate_key if it is taken, errc::out_of_range above the domain's max_key.
  std::optional<std::uint64_t> requested_key = std::nullopt;
  /// Peers have no access, not even through windows, before porting::enable(), so that a porting::write_counter can be
  /// bound first. Where domain_capabilities::gates is false, a disabled region has no key for peers. Not together with
  /// dmabuf or direct. See fi_mr_enable(3).
  bool disabled = false;
  /// Pages on demand instead of pinning, for this range only. See IBV_ACCESS_ON_DEMAND of ibv_reg_mr(3).
  bool on_demand = false;
  /// The range need not be mapped, now or later. A peer's access to memory that is not mapped at that time, or not with
  /// the rights that the access needs, is refused (errc::remote_access); part of a write may be in place. The kernel
  /// copies, by process_vm_readv(2) and process_vm_writev(2), so words may be torn; where these calls are forbidden,
  /// registering throws errc::not_supported. For read_src, write_dst and flush_visibility alone. Not together with
  /// direct. See FI_MR_ALLOCATED of fi_mr(3).
  bool lazy = false;
  /// The descriptor of a dma-buf, which is registered from `dmabuf_offset` on. The range must be where this process has
  /// mapped that part, because the processor copies small messages; its address must equal `dmabuf_offset` modulo the
  /// page size. The descriptor may be closed once the memory is registered. Not together with disabled, on_demand,
  /// several ranges or usage::bind_window. See ibv_reg_dmabuf_mr(3).
  std::optional<int> dmabuf = std::nullopt;
  std::uint64_t dmabuf_offset = 0;  ///< where the range begins in the dma-buf

  bool huge_pages = false;        ///< a promise: the range lies in huge pages entirely, and stays so
  bool relaxed_ordering = false;  ///< a permission: the device may reorder what it writes there
  /// A permission: peers on this machine may map the memory, and read and write it without this process. Only for a
  /// region that owns an mr::mapping::in_memory_file(), so that the file holds nothing else. A peer that has mapped the
  /// file can do more than its key allows: docs/shm.md. Not together with disabled or lazy. For device memory: such a
  /// peer may open the allocation while a local operation uses it, and this process opens the peer's:
  /// docs/device-memory.md.
  bool direct = false;

  /// Counts the bytes that workers have populated for pinning, or have tried to. Only where a device pins, for 4 MiB or
  /// more, and not with `device`, on_demand or dmabuf. The counter must live as long as the region, because
  /// porting::enable() and porting::refresh() count here too.
  std::atomic<std::size_t>* progress = nullptr;
  weft::system_calls* system_calls = nullptr;  ///< replaced in tests; null: the kernel's
};
static_assert(std::is_trivially_destructible_v<registration_options>);

/// The capabilities of a domain beyond plain registration of a range.
struct domain_capabilities {
  mr::usage usages = mr::usage::none;  ///< all usages that it can grant
  bool iova = false;                   ///< registration_options::iova
  bool zero_based = false;             ///< registration_options::zero_based
  bool requested_key = false;          ///< registration_options::requested_key
  std::uint64_t max_key = UINT32_MAX;  ///< the largest requested_key
  std::size_t max_ranges = 1;          ///< the most ranges of one region
  bool disabled = false;               ///< registration_options::disabled, and porting::write_counter
  /// The fabric keeps disabled regions closed and sees peers' writes by itself. On any other fabric a disabled region
  /// has no key or windows until it is enabled, and enabling may register it again.
  bool gates = false;
  bool on_demand = false;      ///< registration_options::on_demand
  bool lazy = false;           ///< registration_options::lazy
  bool everything = false;     ///< everything() can be registered
  bool dmabuf = false;         ///< registration_options::dmabuf
  bool device_memory = false;  ///< the fabric may reach device memory: registration_options::device
  int numa_node = -1;          ///< the device's NUMA node; -1: none, or unknown
  bool pins = false;           ///< registration pins pages in memory, so RLIMIT_MEMLOCK counts
  /// The device makes persistent what peers write to persistent memory: usage::flush_persistent without on_demand.
  bool device_flush = false;
};

/// One fabric's registration of memory. Opaque to all but that fabric, except the remote key and the address, which go
/// to peers unchanged.
struct registration {
  std::uint64_t local_key = 0;   ///< for local operations; 0 where the fabric needs none
  std::uint64_t remote_key = 0;  ///< for peers; 0: they have no access
  std::uint64_t address = 0;     ///< of the first byte, as peers use it
  /// The transport's own. If it is null, and the fabric pins or the memory is a device's, there is no registration.
  void* handle = nullptr;
};

}  // namespace weft::mr
