// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device_memory.hpp>
#include <weft/mr/everything.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/words.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace weft::net::verbs {
namespace {

// Leaves requested_key false, because no device lets its user choose the key.
mr::domain_capabilities abilities_of(const device& home) {
  mr::domain_capabilities abilities;
  abilities.usages = mr::usage::send | mr::usage::recv | mr::usage::read_src | mr::usage::read_dst |
                     mr::usage::write_src | mr::usage::write_dst | mr::usage::flush_visibility;
  if (home.traits().has_atomics) abilities.usages |= mr::usage::atomic_dst;
  if (home.traits().has_windows()) abilities.usages |= mr::usage::bind_window;
  abilities.iova = abilities.zero_based = home.traits().heeds_iova;
  abilities.on_demand = home.on_demand_operations() != 0;
  abilities.device_flush = home.has_flush();
  if (abilities.on_demand || abilities.device_flush) abilities.usages |= mr::usage::flush_persistent;
  abilities.everything = home.pages_everything() && !home.traits().read_sinks_need_remote_write;
  abilities.dmabuf = home.has_dmabuf();
  abilities.disabled = true;
  abilities.device_memory = true;
  abilities.pins = true;
  abilities.numa_node = home.numa_node();
  return abilities;
}

// Whether the kernel has nvidia_peermem, the module of NVIDIA's driver with which ibv_reg_mr(3) takes GPU addresses.
bool has_peer_memory_module() noexcept { return ::access("/sys/module/nvidia_peermem", F_OK) == 0; }

unsigned flags_of(mr::access rights, const mr::registration_options& options) noexcept {
  unsigned flags = 0;
  const auto add = [&](mr::access right, int flag) {
    if (includes(rights, right)) flags |= static_cast<unsigned>(flag);
  };
  add(mr::access::local_write, IBV_ACCESS_LOCAL_WRITE);
  add(mr::access::remote_write, IBV_ACCESS_REMOTE_WRITE);
  add(mr::access::remote_read, IBV_ACCESS_REMOTE_READ);
  add(mr::access::remote_atomic, IBV_ACCESS_REMOTE_ATOMIC);
  add(mr::access::bind_window, IBV_ACCESS_MW_BIND);
  if (options.on_demand) flags |= IBV_ACCESS_ON_DEMAND;
  // Set for on_demand only, because the kernel finds out the size of pinned pages by itself.
  if (options.on_demand && options.huge_pages) flags |= IBV_ACCESS_HUGETLB;
  if (options.relaxed_ordering) flags |= IBV_ACCESS_RELAXED_ORDERING;  // reg_mr() drops it for an old kernel
  return flags;
}

// The usages that need a region at the memory's own address.
constexpr mr::usage own_uses = ~mr::peer_usages;

// The address that peers use for the first byte. zero_based is carried out by an iova of 0 (ibv_reg_mr_iova(3)),
// because rdma-core 44 ignores IBV_ACCESS_ZERO_BASED.
std::uint64_t address_for_peers(std::span<std::byte> memory, const mr::registration_options& options) noexcept {
  if (options.zero_based) return 0;
  return options.iova.value_or(reinterpret_cast<std::uintptr_t>(memory.data()));
}

void check_alignment(std::span<std::byte> memory, const mr::registration_options& options, const std::string& what) {
  const std::uintptr_t in_page = reinterpret_cast<std::uintptr_t>(memory.data()) % mr::detail::page_bytes();
  if (options.zero_based && in_page != 0) {
    throw error(errc::misaligned, what + ": zero_based needs memory that starts at a page on this device");
  }
}

// Refuses on_demand for usages that need an operation for which the device does not support on-demand paging.
void check_on_demand(std::uint32_t operations, const mr::registration_options& options, const std::string& what) {
  static constexpr struct {
    mr::usage uses;
    std::uint32_t operation;
  } needed[] = {
      {mr::usage::send, IBV_ODP_SUPPORT_SEND},
      {mr::usage::recv, IBV_ODP_SUPPORT_RECV},
      {mr::usage::write_src | mr::usage::write_dst, IBV_ODP_SUPPORT_WRITE},
      {mr::usage::read_src | mr::usage::read_dst | mr::usage::flush_visibility, IBV_ODP_SUPPORT_READ},
      {mr::usage::atomic_dst, IBV_ODP_SUPPORT_ATOMIC},
  };
  if (!options.on_demand) return;
  mr::usage beyond = mr::usage::none;
  for (const auto& [uses, operation] : needed) {
    if ((operations & operation) == 0) beyond |= options.usage & uses;
  }
  if (beyond != mr::usage::none) {
    throw error(errc::not_supported, fmt::format("{}: on_demand for {}", what, to_string(beyond)));
  }
}

void check_dmabuf(const mr::registration_options& options, const std::string& what) {
  if (options.dmabuf && overlaps(options.usage, mr::usage::bind_window)) {
    throw error(errc::not_supported, what + ": a dmabuf cannot have bind_window on this device");
  }
}

}  // namespace

void domain::deregister::operator()(ibv_mr* region) const noexcept {
  const int failure = calls->dereg_mr(region);
  // A removed device accesses no memory any more. Any other failure would leave the memory open to peers: EBUSY,
  // for example, or EINVAL on rxe, if a window is bound to the region. Our own windows keep their region registered.
  if (failure < 0 && !has_gone(failure)) {
    weft::detail::terminate_because("memory could not be deregistered, and peers may still use it");
  }
}

domain::domain(std::shared_ptr<device> home)
    : mr::domain("verbs:" + home->name(), abilities_of(*home)), device_(std::move(home)) {}

// Memory that is not for windows does not get the right to bind them, because the kernel grants that right on writable
// pages only. Memory for windows also gets local_write, because a window that allows writes needs a writable region
// (ibv_bind_mw(3)).
mr::access domain::rights_of(mr::usage purpose) const noexcept {
  // mutant: read into memory
  mr::access rights =
      device_->traits().read_sinks_need_remote_write ? mr::rights_for_iwarp(purpose) : mr::rights_for(purpose);
  if (overlaps(purpose, mr::usage::bind_window)) rights |= mr::access::local_write;
  return rights;
}

// If the device is to flush the memory, refuses memory that is not persistent: the device would flush it all the same.
// The kernel refuses some such memory by itself, but gives no reason.
void domain::check_flushed(std::span<std::byte> memory, const mr::registration_options& options,
                           const std::string& what) const {
  if (!is_flushed_by_device(options)) return;
  const std::string why_not = device_->calls().why_not_dax(memory);
  if (why_not.empty()) return;
  const char* const other = capabilities().on_demand ? "; for other files there is on_demand" : "";
  throw error(errc::not_supported,
              fmt::format("{} with usage flush_persistent, which this device has for DAX devices, such as "
                          "/dev/dax0.0: {}{}",
                          what, why_not, other));
}

mr::registration domain::do_register(std::span<std::byte> memory, const mr::registration_options& wanted) {
  mr::registration_options options = wanted;
  if (options.device != nullptr) options.usage &= ~mr::usage::bind_window;
  const std::string what = fmt::format("register {} bytes on {}", memory.size(), name());
  if (mr::is_everything(memory)) {
    memory = {static_cast<std::byte*>(nullptr), SIZE_MAX};  // ibv_reg_mr(3): implicit on-demand paging
    options.on_demand = true;
  } else {
    check_size(memory, what);
  }
  check_count(what);
  check_alignment(memory, options, what);
  check_on_demand(device_->on_demand_operations(), options, what);
  check_dmabuf(options, what);
  check_flushed(memory, options, what);
  mr::registration item;
  item.address = address_for_peers(memory, options);
  entry made = make_regions(memory, options, what);
  if (made.own != nullptr) item.local_key = made.own->lkey;
  if (overlaps(options.usage, mr::peer_usages)) item.remote_key = made.key_region().rkey;
  item.handle = std::make_unique<entry>(std::move(made)).release();
  regions_.fetch_add(1, std::memory_order_relaxed);
  return item;
}

// The device's limits are checked before the call, for clearer errors. The call may still fail, because the device has
// other users.
void domain::check_size(std::span<std::byte> memory, const std::string& what) const {
  const std::uint64_t most = device_->limits().max_mr_size;
  if (memory.size() <= most) return;
  throw error(errc::out_of_range, fmt::format("{}: a region has at most {} bytes on this device", what, most));
}

void domain::check_count(const std::string& what) {
  const auto most = static_cast<std::size_t>(std::max(device_->limits().max_mr, 0));
  if (regions_.load(std::memory_order_relaxed) < most) return;
  throw error(errc::no_memory, fmt::format("{}: the device has {} regions, which is its maximum", what, most));
}

// A region has one address, for us and for peers (ibv_reg_mr_iova(3)), but our operations use the real one. So memory
// that both use is registered twice if peers use another address, and then counts twice as pinned.
domain::entry domain::make_regions(std::span<std::byte> memory, const mr::registration_options& options,
                                   const std::string& what) {
  const auto real = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uint64_t address = address_for_peers(memory, options);
  const mr::usage open = options.usage & mr::peer_usages;
  const mr::usage own = options.usage & own_uses;
  entry made;
  if (address == real || open == mr::usage::none) {
    made.rights = rights_of(options.usage);
    made.own = make_region(memory, real, made.rights, options, what);
    return made;
  }
  made.for_peers = make_region(memory, address, rights_of(open), options, what);
  if (own == mr::usage::none) return made;
  made.rights = rights_of(own);
  made.own = make_region(memory, real, made.rights, options, what);
  return made;
}

// Registers a GPU's memory by a dma-buf if the RDMA device takes dma-bufs, or else by its addresses, which
// nvidia_peermem lets the kernel translate. Throws errc::not_supported if neither is possible. A dma-buf can have no
// windows, so peers get no windows in either case.
domain::held_region domain::make_region_of_device(std::span<std::byte> memory, unsigned flags, mr::memory_device& owner,
                                                  const std::string& what) {
  rdma_calls& library = device_->calls();
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  ibv_mr* made = nullptr;
  int failure = -EOPNOTSUPP;
  if (device_->has_dmabuf()) {
    const mr::device_dmabuf exported = owner.export_dmabuf(memory);
    const descriptor closed_soon(exported.descriptor, system_calls::kernel());
    failure = library.reg_dmabuf_mr(device_->pd(), exported.offset, memory.size(), address, exported.descriptor, flags,
                                    &made);
  } else if (has_peer_memory_module()) {
    failure = library.reg_mr(device_->pd(), memory.data(), memory.size(), address, flags, &made);
  }
  if (failure == -EOPNOTSUPP) {
    throw error(errc::not_supported, fmt::format("{}: this device does not reach memory of {}", what, owner.name()));
  }
  if (failure < 0) throw failure_of_registration(-failure, what);
  return {made, deregister{&library}};
}

domain::held_region domain::make_region(std::span<std::byte> memory, std::uint64_t address, mr::access rights,
                                        const mr::registration_options& options, const std::string& what) {
  rdma_calls& library = device_->calls();
  unsigned flags = flags_of(rights, options);
  const bool is_flushed = is_flushed_by_device(options);
  if (is_flushed) flags |= access_flush_persistent;
  if (options.device != nullptr) return make_region_of_device(memory, flags, *options.device, what);
  ibv_mr* made = nullptr;
  int failure = 0;
  if (options.dmabuf) {
    failure = library.reg_dmabuf_mr(device_->pd(), options.dmabuf_offset, memory.size(), address, *options.dmabuf,
                                    flags, &made);
  } else {
    // EAGAIN: the mapping changed during the call, which only on-demand paging reports.
    for (int attempts = 0; attempts < 8; ++attempts) {
      failure = library.reg_mr(device_->pd(), memory.data(), memory.size(), address, flags, &made);
      if (failure != -EAGAIN) break;
    }
  }
  if (failure == -EINVAL && is_flushed) {
    throw error(errc::not_supported, what +
                                         " with usage flush_persistent: the kernel does not take it for persistent "
                                         "memory, as it takes none that memmap= has set aside");
  }
  if (failure < 0) throw failure_of_registration(-failure, what);
  return {made, deregister{&library}};
}

void domain::do_deregister(mr::registration& item) noexcept {
  if (item.handle == nullptr) return;  // device memory that this device does not reach
  const std::unique_ptr<entry> gone(static_cast<entry*>(item.handle));
  regions_.fetch_sub(1, std::memory_order_relaxed);
}

ibv_mr* domain::find(const mr::memory_record& memory, mr::access rights) const noexcept {
  const auto* const held = static_cast<const entry*>(memory.in(fabric()).handle);
  return held->own != nullptr && includes(held->rights, rights) ? held->own.get() : nullptr;
}

}  // namespace weft::net::verbs
