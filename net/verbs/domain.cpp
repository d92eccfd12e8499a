// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/arena.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>

namespace weft::net::verbs {
namespace {

// Not zero-based regions, which rxe registers and then does not find: an iova does the same. Neither does any device
// let its user choose the key.
mr::domain_capabilities abilities_of(const device& home) {
  mr::domain_capabilities abilities;
  abilities.usages = mr::usage::send | mr::usage::recv | mr::usage::read_src | mr::usage::read_dst |
                     mr::usage::write_src | mr::usage::write_dst | mr::usage::flush_visibility;
  if (home.has_atomics()) abilities.usages |= mr::usage::atomic_dst;
  if (home.has_windows()) abilities.usages |= mr::usage::bind_window;
  abilities.iova = true;
  abilities.pins = true;
  return abilities;
}

unsigned flags_of(mr::access rights) noexcept {
  unsigned flags = 0;
  const auto add = [&](mr::access right, int flag) {
    if (includes(rights, right)) flags |= static_cast<unsigned>(flag);
  };
  add(mr::access::local_write, IBV_ACCESS_LOCAL_WRITE);
  add(mr::access::remote_write, IBV_ACCESS_REMOTE_WRITE);
  add(mr::access::remote_read, IBV_ACCESS_REMOTE_READ);
  add(mr::access::remote_atomic, IBV_ACCESS_REMOTE_ATOMIC);
  add(mr::access::bind_window, IBV_ACCESS_MW_BIND);
  return flags;
}

constexpr mr::access peer_rights = mr::access::remote_read | mr::access::remote_write | mr::access::remote_atomic;

// ENOMEM is nearly always the limit on locked memory, and nobody guesses that.
error failure_of(int number, const std::string& what) {
  if (number != ENOMEM) return system_error(number, what);
  const auto limit = mr::locked_memory_limit();
  if (!limit) return error(errc::no_memory, what);
  return error(errc::no_memory,
               fmt::format("{}: the limit on locked memory is {} bytes (ulimit -l); raise it, or lower "
                           "the pool's limit",
                           what, *limit));
}

}  // namespace

domain::domain(std::shared_ptr<device> home)
    : mr::domain("verbs:" + home->name(), abilities_of(*home)), device_(std::move(home)) {}

// Windows may be bound to any region that can take what they let in: the right to bind opens nothing by itself. One
// that lets writes in needs a region that can be written (ibv_bind_mw(3)), so what is for windows has to be that.
mr::access domain::rights_of(mr::usage purpose) const noexcept {
  mr::access rights = device_->is_iwarp() ? mr::rights_for_iwarp(purpose) : mr::rights_for(purpose);
  if (device_->has_windows()) rights |= mr::access::bind_window;
  if (overlaps(purpose, mr::usage::bind_window)) rights |= mr::access::local_write;
  return rights;
}

mr::registration domain::do_register(std::span<std::byte> memory, const mr::registration_options& options) {
  const mr::access rights = rights_of(options.usage);
  unsigned flags = flags_of(rights);
  if (options.huge_pages) flags |= IBV_ACCESS_HUGETLB;
  if (options.relaxed_ordering) flags |= IBV_ACCESS_RELAXED_ORDERING;  // optional: ignored where it is unknown
  mr::registration item;
  item.address = options.iova.value_or(reinterpret_cast<std::uintptr_t>(memory.data()));
  ibv_mr* region = nullptr;
  const int failure =
      device_->calls().reg_mr(device_->pd(), memory.data(), memory.size(), item.address, flags, &region);
  if (failure < 0) throw failure_of(-failure, fmt::format("register {} bytes on {}", memory.size(), name()));
  item.local_key = region->lkey;
  if ((rights & peer_rights) != mr::access::none) item.remote_key = region->rkey;
  try {
    const std::lock_guard lock(mutex_);
    auto where = regions_.emplace(reinterpret_cast<std::uintptr_t>(memory.data()), entry{region, rights});
    longest_ = std::max(longest_, memory.size());
    item.handle = new table::iterator(where);
  } catch (...) {
    device_->calls().dereg_mr(region);
    throw;
  }
  return item;
}

void domain::do_deregister(mr::registration& item) noexcept {
  const std::unique_ptr<table::iterator> where(static_cast<table::iterator*>(item.handle));
  ibv_mr* const region = (*where)->second.region;
  {
    const std::lock_guard lock(mutex_);
    regions_.erase(*where);
  }
  const int failure = device_->calls().dereg_mr(region);
  // A device that has gone has let go of the memory. Anything else would leave it open to peers.
  if (failure < 0 && failure != -EIO && failure != -ENODEV) {
    weft::detail::terminate_because("memory could not be deregistered, and peers may still use it");
  }
}

ibv_mr* domain::find(std::span<const std::byte> memory, mr::access rights) {
  const auto first = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::lock_guard lock(mutex_);
  for (auto next = regions_.upper_bound(first); next != regions_.begin();) {
    --next;
    if (first - next->first >= longest_) break;
    const entry& item = next->second;
    const std::size_t offset = first - next->first;
    if (offset + memory.size() <= item.region->length && includes(item.rights, rights)) return item.region;
  }
  return nullptr;
}

}  // namespace weft::net::verbs
