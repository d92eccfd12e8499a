// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/mapping.hpp>
#include <weft/net/connection/joint_domain.hpp>
#include <weft/runtime/error.hpp>

#include <cassert>
#include <exception>
#include <system_error>
#include <utility>

namespace weft::net {
namespace {

// The capabilities of all parts together. One part suffices for memory windows, because connections over other fabrics
// refuse to expose memory, and for device memory. Options for pinning need at least one part that pins, and have to be
// supported only by the parts that do.
mr::domain_capabilities common_capabilities(std::span<const std::shared_ptr<mr::domain>> parts) {
  mr::domain_capabilities common = parts.front()->capabilities();
  mr::usage windows = common.usages & mr::usage::bind_window;
  bool every_on_demand = true;
  bool every_dmabuf = true;
  for (const auto& part : parts) {
    const mr::domain_capabilities& its = part->capabilities();
    common.usages &= its.usages;
    windows |= its.usages & mr::usage::bind_window;
    common.iova = common.iova && its.iova;
    common.zero_based = common.zero_based && its.zero_based;
    common.lazy = common.lazy && its.lazy;
    common.everything = common.everything && its.everything;
    every_on_demand = every_on_demand && (its.on_demand || !its.pins);
    every_dmabuf = every_dmabuf && (its.dmabuf || !its.pins);
    common.device_memory = common.device_memory || its.device_memory;
    common.pins = common.pins || its.pins;
    if (common.numa_node < 0) common.numa_node = its.numa_node;
  }
  common.usages |= windows;
  common.on_demand = common.pins && every_on_demand;
  common.dmabuf = common.pins && every_dmabuf;
  common.requested_key = false;  // each fabric has keys of its own
  common.disabled = true;        // enabling such a region registers it again
  common.gates = false;
  common.device_flush = false;  // of no use to peers that come by another fabric
  common.max_ranges = 1;
  return common;
}

void drop_what_is_for_pinning(mr::registration_options& options) noexcept {
  options.on_demand = false;
  options.dmabuf.reset();
  options.dmabuf_offset = 0;
}

// Whether a registration failed because the device was removed. Such a device has no link that needs the memory, so
// registration goes on without it.
bool is_of_removed_device(const error& why) noexcept {
  return why.code() == std::errc::io_error || why.code() == std::errc::no_such_device;
}

// Whether `item` is a registration that `part` has made: a domain that pins gives each of its registrations a handle.
bool is_there(const mr::domain& part, const mr::registration& item) noexcept {
  return item.handle != nullptr || !part.pins();
}

}  // namespace

joint_domain::joint_domain(std::vector<std::shared_ptr<mr::domain>> parts)
    : mr::domain(join_names(parts), common_capabilities(parts)), parts_(std::move(parts)) {
  assert(parts_.size() > 1 && parts_.size() <= mr::max_fabrics);
}

mr::mapping joint_domain::provide(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls) {
  return parts_.front()->provide(bytes, huge_pages, node, calls);
}

std::vector<mr::registration> joint_domain::register_with_all(std::span<std::byte> memory,
                                                              const mr::registration_options& options) {
  std::vector<mr::registration> made;
  made.reserve(parts_.size());
  std::exception_ptr failure;
  bool nowhere = true;
  try {
    for (const auto& part : parts_) {
      mr::registration_options its = options;
      its.usage &= (part->capabilities().usages | ~mr::usage::bind_window) & ~mr::usage::flush_persistent;
      if (!part->pins()) drop_what_is_for_pinning(its);
      try {
        made.push_back(part->register_now(memory, its));
        nowhere = false;
      } catch (const error& why) {
        if (!part->pins() || !is_of_removed_device(why)) throw;
        failure = std::current_exception();
        made.emplace_back();
      }
    }
    if (nowhere) std::rethrow_exception(failure);
  } catch (...) {
    deregister(made);
    throw;
  }
  return made;
}

void joint_domain::deregister(std::span<mr::registration> made) noexcept {
  for (std::size_t i = made.size(); i > 0; --i) {
    if (is_there(*parts_[i - 1], made[i - 1])) parts_[i - 1]->deregister_now(made[i - 1]);
  }
}

void joint_domain::do_register_all(mr::memory_record& target, const mr::registration_options& options) {
  if (overlaps(target.usage, mr::usage::flush_persistent) && parts_.size() == mr::max_fabrics) {
    throw error(errc::not_supported, "usage flush_persistent with so many fabrics: a descriptor has no room for it");
  }
  auto others = std::make_unique<mr::registration[]>(parts_.size() - 1);
  const std::vector<mr::registration> made = register_with_all(target.bytes, options);
  target.registration = made.front();
  std::copy(made.begin() + 1, made.end(), others.get());
  target.others = std::move(others);
}

void joint_domain::do_deregister_all(mr::memory_record& target) noexcept {
  for (std::size_t i = parts_.size() - 1; i > 0; --i) {
    if (is_there(*parts_[i], target.others[i - 1])) parts_[i]->deregister_now(target.others[i - 1]);
  }
  if (is_there(*parts_.front(), target.registration)) parts_.front()->deregister_now(target.registration);
}

void joint_domain::do_share(mr::memory_record& target) {
  for (const auto& part : parts_) part->share(target);
}

// The part of a removed device has no gates, so its empty registration is not used here.
void joint_domain::do_count_all(mr::memory_record& target, mr::detail::write_counter_core& counter) {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i]->capabilities().gates) parts_[i]->count_writes(target.in(i), counter);
  }
}

bool joint_domain::do_reach_all(const mr::memory_record& target) const noexcept {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (!target.is_within_reach_of(i)) return false;
  }
  return true;
}

mr::remote_region joint_domain::do_describe(const mr::memory_record& target, std::uint64_t size, mr::usage open) const {
  std::array<mr::remote_place, mr::max_fabrics> places;
  std::size_t count = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const mr::registration& its = target.in(i);
    if (!target.is_within_reach_of(i)) continue;
    places[count++] = {.fabric = static_cast<std::uint8_t>(i), .address = its.address, .key = its.remote_key};
  }
  if (target.owners_key != 0) places[count++] = {.fabric = mr::place_behind_owner, .key = target.owners_key};
  return {std::span(places).first(count), size, open};
}

// Nobody uses the record meanwhile, so this thread may write it.
void joint_domain::do_refresh(mr::detail::region_state& target, const mr::registration_options& options) {
  std::vector<mr::registration> replaced = register_with_all(target.bytes, options);
  std::swap(target.registration, replaced.front());
  std::swap_ranges(replaced.begin() + 1, replaced.end(), target.others.get());
  deregister(replaced);
}

mr::registration joint_domain::do_register(std::span<std::byte>, const mr::registration_options&) {
  throw error(errc::not_supported, "register memory with one of several fabrics: call the domain of that fabric");
}

void joint_domain::do_deregister(mr::registration&) noexcept {
  weft::detail::terminate_because("memory was deregistered from a domain that has not registered it");
}

}  // namespace weft::net
