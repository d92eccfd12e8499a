// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/domain.hpp>
#include <weft/net/software/mapped_memory.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/random.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace weft::net::fabric {
namespace {

mr::domain_capabilities abilities_of(const device& home) {
  mr::domain_capabilities abilities;
  abilities.usages =
      mr::usage::send | mr::usage::recv | mr::usage::read_dst | mr::usage::write_src | mr::usage::bind_window;
  abilities.disabled = true;
  abilities.everything = !home.needs(FI_MR_LOCAL);
  if (home.opens_regions()) {
    abilities.usages |= mr::usage::read_src | mr::usage::write_dst | mr::usage::flush_visibility;
    if (home.has_atomics()) abilities.usages |= mr::usage::atomic_dst;
    if (home.writes_by_processor()) abilities.usages |= mr::usage::flush_persistent;
  }
  return abilities;
}

std::uint64_t own_rights(mr::usage uses) noexcept {
  std::uint64_t rights = 0;
  if (overlaps(uses, mr::usage::send)) rights |= FI_SEND;
  if (overlaps(uses, mr::usage::recv)) rights |= FI_RECV;
  if (overlaps(uses, mr::usage::write_src)) rights |= FI_WRITE;
  if (overlaps(uses, mr::usage::read_dst)) rights |= FI_READ;
  return rights;
}

std::uint64_t draw_key(const device& home) {
  const std::size_t bytes = std::min<std::size_t>(home.info().domain_attr->mr_key_size, sizeof(std::uint64_t));
  std::uint64_t key = 0;
  weft::detail::draw(system_calls::kernel(), std::as_writable_bytes(std::span(&key, 1)).first(bytes));
  key &= ~(std::uint64_t{1} << 63);  // so that rails do not take it for a handle
  return key != 0 ? key : 1;
}

// Takes the further steps that some providers want before a region may be used. Returns 0 or -errno of libfabric.
int prepare(const device& home, fid_mr& region, fid_ep* bound) noexcept {
  const entry inside = home.enter_for_region();
  if (home.needs(FI_MR_ENDPOINT) && bound != nullptr) {  // mutant: leave a region unbound
    const int failure = home.calls().mr_bind(&region, &bound->fid, 0);
    if (failure < 0) return failure;
  }
  // mutant: leave a region disabled
  return home.needs(FI_MR_ENDPOINT | FI_MR_RMA_EVENT) ? home.calls().mr_enable(&region) : 0;
}

}  // namespace

std::uint64_t rights_of_peers(mr::usage uses) noexcept {
  std::uint64_t rights = 0;
  if (overlaps(uses, mr::usage::read_src | mr::usage::flush_visibility)) rights |= FI_REMOTE_READ;
  if (overlaps(uses, mr::usage::write_dst)) rights |= FI_REMOTE_WRITE;
  if (overlaps(uses, mr::usage::atomic_dst)) rights |= FI_REMOTE_READ | FI_REMOTE_WRITE;
  return rights;
}

region_ptr register_region(const device& home, std::span<std::byte> memory, std::uint64_t rights, fid_ep* bound,
                           const char* what) {
  fabric_calls& library = home.calls();
  const iovec range{.iov_base = memory.data(), .iov_len = memory.size()};
  fi_mr_attr wanted{};
  wanted.mr_iov = &range;
  wanted.iov_count = 1;
  wanted.access = rights;  // mutant: open memory
  region_ptr region(nullptr, {&home});
  int failure = -FI_ENOKEY;
  for (int tries = 0; failure == -FI_ENOKEY && tries < 8; ++tries) {  // FI_ENOKEY: another region has the key
    if (!home.needs(FI_MR_PROV_KEY)) wanted.requested_key = draw_key(home);
    const entry inside = home.enter_for_region();
    fid_mr* made = nullptr;
    failure = library.mr_regattr(home.domain(), &wanted, 0, &made);
    if (failure >= 0) region.reset(made);
  }
  if (failure >= 0) failure = prepare(home, *region, bound);
  if (failure < 0) {
    throw_failure(library, failure, fmt::format("{} ({} bytes on fabric:{})", what, memory.size(), home.name()));
  }
  return region;
}

domain::domain(std::shared_ptr<device> home)
    : mr::domain("fabric:" + home->name(), abilities_of(*home)), device_(std::move(home)) {}

mr::registration domain::do_register(std::span<std::byte> memory, const mr::registration_options& options) {
  system_calls& calls = options.system_calls != nullptr ? *options.system_calls : system_calls::kernel();
  static_cast<void>(software::check_memory(memory, options.usage, name(), calls));
  mr::registration item;
  const std::uint64_t open = rights_of_peers(options.usage);
  const std::uint64_t own = device_->needs(FI_MR_LOCAL) ? own_rights(options.usage) : 0;
  item.address = device_->needs(FI_MR_VIRT_ADDR) ? reinterpret_cast<std::uintptr_t>(memory.data()) : 0;
  if ((open | own) == 0) return item;
  region_ptr made = register_region(*device_, memory, open | own, nullptr, "register memory");
  item.local_key = reinterpret_cast<std::uintptr_t>(::fi_mr_desc(made.get()));
  if (open != 0) {
    item.remote_key = ::fi_mr_key(made.get());
    const std::lock_guard lock(mutex_);
    open_.emplace(::fi_mr_key(made.get()), opened_memory{item.address, memory.size(), open});
  }
  item.handle = made.release();
  return item;
}

opened_memory domain::find(std::uint64_t key) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(key);
  return found != open_.end() ? found->second : opened_memory();
}

void domain::do_deregister(mr::registration& item) noexcept {
  if (item.handle == nullptr) return;
  auto* const region = static_cast<fid_mr*>(item.handle);
  const std::uint64_t key = ::fi_mr_key(region);
  const bool was_open = item.remote_key != 0;
  {
    const std::lock_guard lock(mutex_);
    open_.erase(key);
  }
  region_closer{device_.get()}(region);
  if (was_open) device_->fence(key);  // mutant: do not ask peers
}

}  // namespace weft::net::fabric
