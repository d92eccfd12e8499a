// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/remote_key.hpp>
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

/// The fabrics of one device, at most: two rails, shared memory and a way out over TCP. A descriptor that names memory
/// on all of them still fits a small message.
inline constexpr std::size_t max_fabrics = 4;

/// The number of a remote_place that no fabric reaches: the memory is a GPU's, and its owner copies what peers write or
/// read there.
inline constexpr std::uint8_t place_behind_owner = max_fabrics;

/// What memory is made of.
enum class memory_kind : std::uint8_t {
  host,    ///< the processor reads and writes it
  device,  ///< a device's own, such as a GPU's: the processor must not touch it
};

/// How memory is to be registered. What a transport cannot do is refused with errc::not_supported and the option's
/// name, before anything happens.
struct registration_options {
  mr::usage usage = mr::usage::none;  ///< what operations of this end and of peers may do with it
  /// The device whose memory the range is, by the device's addresses: it is memory_kind::device then, of which the
  /// processor touches nothing. Null: host memory. A fabric that reaches the device uses the memory by itself. For any
  /// other one weft copies what is moved through host memory, over connections with connection_options::device_memory.
  ///
  /// Not together with iova, zero_based, requested_key, disabled, on_demand, dmabuf, huge_pages, several ranges
  /// or usage::atomic_dst. The region keeps the device.
  memory_device* device = nullptr;

  /// The address by which peers know the first byte; must agree with the real one modulo 4096. See ibv_reg_mr_iova(3).
  /// An RDMA device then pins the memory twice if this end uses it as well.
  std::optional<std::uint64_t> iova = std::nullopt;
  /// Peers address the region from 0 on. With an RDMA device that is an iova of 0.
  bool zero_based = false;
  /// The key that peers use; errc::duplicate_key if it is taken, errc::out_of_range above the domain's max_key.
  std::optional<std::uint64_t> requested_key = std::nullopt;
  /// Closed to peers, windows of it too, until porting::enable(), so that something can be bound to it first. Where
  /// domain_capabilities::gates is false, peers get no key before that. Not together with dmabuf. See fi_mr_enable(3).
  bool disabled = false;
  /// Page on demand instead of pinning, this range and no more. See IBV_ACCESS_ON_DEMAND of ibv_reg_mr(3).
  bool on_demand = false;
  /// Memory of a device, by its dma-buf descriptor, from `dmabuf_offset` on. The range registered is where this process
  /// has mapped it: the processor copies small messages. The descriptor may be closed after that. Not together with
  /// on_demand or usage::bind_window. See ibv_reg_dmabuf_mr(3).
  std::optional<int> dmabuf = std::nullopt;
  std::uint64_t dmabuf_offset = 0;  ///< where the range begins in the dma-buf

  bool huge_pages = false;        ///< a promise: the range lies in huge pages entirely, and stays so
  bool relaxed_ordering = false;  ///< a permission: the device may reorder what it writes there
  /// A permission: peers that are processes of this machine may map the memory, and read and write it without this
  /// process. For a region that owns an mr::mapping::in_memory_file(), and so holds nothing else. Who has mapped it can
  /// do more than its key says: docs/shm.md. Not together with `disabled`. Of memory of a device: its allocation may be
  /// opened by such a peer while an operation of this end uses it, and this process opens that of peers: see
  /// docs/device-memory.md.
  bool direct = false;

  /// Grows with the bytes that have been made ready for pinning, where a device pins, of 4 MiB and more. Stays until
  /// the registration has ended.
  std::atomic<std::size_t>* progress = nullptr;
  weft::system_calls* system_calls = nullptr;  ///< seam: null is the kernel
};
static_assert(std::is_trivially_destructible_v<registration_options>);

/// What a domain can do beyond plain registration of a range.
struct domain_capabilities {
  mr::usage usages = mr::usage::none;  ///< all that it can grant
  bool iova = false;                   ///< registration_options::iova
  bool zero_based = false;             ///< registration_options::zero_based
  bool requested_key = false;          ///< registration_options::requested_key
  std::uint64_t max_key = UINT32_MAX;  ///< that can be requested
  std::size_t max_ranges = 1;          ///< of one region
  bool disabled = false;               ///< regions can be made so, and porting::write_counter bound to them
  /// It keeps what is disabled closed, and sees what peers write, by itself. Else a region that is disabled has no key
  /// and no windows until it is enabled, and is registered once more then.
  bool gates = false;
  bool on_demand = false;      ///< registration_options::on_demand
  bool dmabuf = false;         ///< registration_options::dmabuf
  bool device_memory = false;  ///< it may reach memory of devices: registration_options::device
  int numa_node = -1;          ///< next to the device; -1: none, or unknown
  bool pins = false;           ///< registration pins pages in memory, so that RLIMIT_MEMLOCK counts
};

/// What one fabric knows about memory that it has registered. Nobody else looks into it, but for the key and the
/// address, which go to peers as they are.
struct registration {
  std::uint64_t local_key = 0;  ///< for our own operations; 0 where the fabric needs none
  mr::remote_key remote_key{};  ///< for peers; 0: no peer has a right to it
  std::uint64_t address = 0;    ///< of the first byte, as peers say it
  void* handle = nullptr;       ///< the transport's own
};

}  // namespace weft::mr
