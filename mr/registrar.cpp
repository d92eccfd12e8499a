// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device/copy_engine.hpp>
#include <weft/mr/device/owner_keys.hpp>
#include <weft/mr/device_memory.hpp>
#include <weft/mr/everything.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/mr/system/mapping.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/mr/system/persistence.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/trace.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>

namespace weft::mr {
namespace {

std::uint64_t offset_in_page(std::uint64_t address) noexcept { return address % detail::page_bytes(); }

}  // namespace

void registrar::refresh_now(detail::region_state& target, std::span<std::byte> memory,
                            const registration_options& options) {
  check_persistent(memory, options);
  do_refresh(target, options);
}

// errc::not_supported of do_register() means that the driver gives the fabric no access to this memory: the memory is
// then out of reach, as it is for a fabric without domain_capabilities::device_memory.
registration registrar::register_of_device(std::span<std::byte> memory, const registration_options& options) {
  if (!capabilities_.device_memory) return {};
  registration_options its = options;
  its.usage &= capabilities_.usages;
  try {
    return do_register(memory, its);
  } catch (const error& why) {
    if (why.code() != errc::not_supported) throw;
    return {};
  }
}

registration registrar::register_as(const memory_record& target, const registration_options& options) {
  if (options.device != nullptr) return register_of_device(target.bytes, options);
  return target.ranges.empty() ? do_register(target.bytes, options) : do_register_ranges(target.ranges, options);
}

void registrar::do_register_all(memory_record& target, const registration_options& options) {
  target.registration = register_as(target, options);
}

void registrar::do_deregister_all(memory_record& target) noexcept {
  if (target.is_within_reach_of(0)) do_deregister(target.registration);
}

void registrar::do_share(memory_record&) {}

remote_region registrar::do_describe(const memory_record& target, std::uint64_t size, mr::usage open) const {
  std::array<remote_place, 2> places;
  std::size_t count = 0;
  if (target.is_within_reach_of(0))
    places[count++] = {.address = target.registration.address, .key = target.registration.remote_key};
  if (target.owners_key != 0) places[count++] = {.fabric = place_behind_owner, .key = target.owners_key};
  return {std::span(places).first(count), size, open};
}

remote_region registrar::describe(const memory_record& target, std::uint64_t size, mr::usage open) const {
  return do_describe(target, size, open);
}

mapping registrar::provide(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls) {
  return {bytes, huge_pages, node, calls};
}

registration registrar::do_register_ranges(std::span<const std::span<std::byte>>, const registration_options&) {
  throw error(errc::not_supported, fmt::format("register several ranges of memory on {}", name_));
}

void registrar::do_count_all(memory_record& target, detail::write_counter_core& counter) {
  if (capabilities_.gates) do_count_writes(target.registration, counter);
}

void registrar::do_count_writes(const registration&, detail::write_counter_core&) {
  throw error(errc::not_supported, fmt::format("count writes of peers on {}", name_));
}

void registrar::do_enable(const registration&) {
  throw error(errc::not_supported, fmt::format("enable a region on {}, which has no disabled regions", name_));
}

// On a fabric that cannot keep a region closed by itself, a disabled region is registered without rights for peers.
registration_options registrar::without_peers(const registration_options& options) const noexcept {
  registration_options its = options;
  if (options.disabled && !capabilities_.gates) {
    its.disabled = false;
    its.usage &= ~peer_usages;
  }
  return its;
}

template <class Register>
void registrar::counted(std::size_t bytes, const Register& make) {
  try {
    make();
    registrations_.fetch_add(1, std::memory_order_relaxed);
    registered_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  } catch (...) {
    failures_.fetch_add(1, std::memory_order_relaxed);
    throw;
  }
}

void registrar::register_now(memory_record& target, const registration_options& options) {
  check(target.bytes, options);
  std::size_t bytes = target.ranges.empty() && !is_everything(target.bytes) ? target.bytes.size() : 0;
  for (const auto& range : target.ranges) bytes += range.size();
  const weft::detail::trace_span span(trace_track::registrations, &target,
                                      [&] { return fmt::format("register {} bytes", bytes); });
  counted(bytes, [&] {
    if (options.device != nullptr) target.allocation = options.device->find(target.bytes).id;
    check_persistent(target.bytes, options);
    do_register_all(target, without_peers(options));
    try {
      open_by_owner(target, options);
      if (options.direct && options.device == nullptr) do_share(target);
    } catch (...) {
      detail::copy_engine::close_key(std::exchange(target.owners_key, 0));
      do_deregister_all(target);
      throw;
    }
  });
}

registration registrar::register_now(std::span<std::byte> memory, const registration_options& options) {
  check(memory, options);
  if (overlaps(options.usage, usage::flush_persistent)) {
    throw error(errc::not_supported, fmt::format("register {} bytes on {} with usage flush_persistent, which is for "
                                                 "regions",
                                                 memory.size(), name_));
  }
  const weft::detail::trace_span span(trace_track::registrations, memory.data(),
                                      [&] { return fmt::format("register {} bytes", memory.size()); });
  registration made;
  counted(is_everything(memory) ? 0 : memory.size(), [&] {
    made = options.device != nullptr ? register_of_device(memory, options) : do_register(memory, options);
  });
  return made;
}

void registrar::deregister_now(registration& item) noexcept {
  const weft::detail::trace_span span(trace_track::registrations, &item, [] { return "deregister"; });
  do_deregister(item);
  ended_.fetch_add(1, std::memory_order_release);
}

void registrar::deregister_now(memory_record& target) noexcept {
  const weft::detail::trace_span span(trace_track::registrations, &target, [] { return "deregister"; });
  detail::copy_engine::close_key(std::exchange(target.owners_key, 0));
  do_deregister_all(target);
  ended_.fetch_add(1, std::memory_order_release);
}

domain_statistics registrar::statistics() const noexcept {
  const std::uint64_t ended = ended_.load(std::memory_order_acquire);  // loaded first: a region's end is counted last
  domain_statistics all;
  all.registrations = registrations_.load(std::memory_order_relaxed);
  all.regions = all.registrations - std::min(ended, all.registrations);
  all.bytes = registered_bytes_.load(std::memory_order_relaxed);
  all.failures = failures_.load(std::memory_order_relaxed);
  return all;
}

void registrar::check(std::span<std::byte> memory, const registration_options& options) const {
  const auto refuse = [&](errc code, const std::string& why) {
    throw error(code, fmt::format("register {} bytes on {}: {}", memory.size(), name_, why));
  };
  if (const usage unknown = options.usage & ~known_usages; unknown != usage::none) {
    refuse(errc::unknown_usage, to_string(unknown));
  }
  if (memory.empty()) refuse(errc::zero_length, "a region needs at least one byte");
  if (memory.data() == nullptr)
    throw error(errc::null_address, fmt::format("register {} bytes on {}", memory.size(), name_));
  if (detail::wraps_around(memory)) refuse(errc::out_of_range, "the memory wraps around");
  if (options.device != nullptr) check_device(options);
  check_supported(options);
  constexpr usage lazy_usages = usage::read_src | usage::write_dst | usage::flush_visibility;
  if (const usage beyond = options.usage & ~lazy_usages; options.lazy && beyond != usage::none)
    refuse(errc::invalid_argument, fmt::format("lazy and usage {} exclude each other", to_string(beyond)));
  if (options.lazy && options.direct) refuse(errc::invalid_argument, "lazy and direct exclude each other");
  if (is_everything(memory)) return check_everything(options);
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(memory.data());
  if (options.requested_key && *options.requested_key > capabilities_.max_key) {
    refuse(errc::out_of_range,
           fmt::format("requested_key {:#x} is larger than {:#x}", *options.requested_key, capabilities_.max_key));
  }
  if (options.dmabuf && options.disabled) refuse(errc::invalid_argument, "dmabuf and disabled exclude each other");
  if (!options.dmabuf && options.dmabuf_offset != 0) refuse(errc::invalid_argument, "dmabuf_offset needs dmabuf");
  if (options.dmabuf && options.on_demand) refuse(errc::invalid_argument, "dmabuf and on_demand exclude each other");
  if (options.dmabuf && offset_in_page(address) != offset_in_page(options.dmabuf_offset)) {
    refuse(errc::misaligned, fmt::format("dmabuf_offset {:#x} and address {:#x} differ modulo {}, the size of a page",
                                         options.dmabuf_offset, address, detail::page_bytes()));
  }
  if (!options.iova) return;
  if (options.zero_based) refuse(errc::invalid_argument, "iova and zero_based exclude each other");
  if (offset_in_page(address) != offset_in_page(*options.iova)) {
    refuse(errc::misaligned, fmt::format("iova {:#x} and address {:#x} differ modulo {}, the size of a page",
                                         *options.iova, address, detail::page_bytes()));
  }
  if (memory.size() - 1 > std::numeric_limits<std::uint64_t>::max() - *options.iova) {
    refuse(errc::out_of_range, fmt::format("iova {:#x} wraps around", *options.iova));
  }
}

void registrar::check_everything(const registration_options& options) const {
  if (!capabilities_.everything) {
    throw error(
        errc::not_supported,
        fmt::format("register everything on {}, where memory is registered before it is used: a cache does that",
                    name_));
  }
  const bool has_options = options.device != nullptr || options.iova || options.zero_based || options.requested_key ||
                           options.disabled || options.on_demand || options.lazy || options.dmabuf ||
                           options.huge_pages || options.direct;
  if (!has_options && !overlaps(options.usage, peer_usages | usage::bind_window)) return;
  throw error(errc::invalid_argument,
              fmt::format("register everything on {}: that is for operations of this side, without options", name_));
}

void registrar::check_ranges(std::span<const std::span<std::byte>> ranges, const registration_options& options) const {
  const auto refuse = [&](errc code, const std::string& why) {
    throw error(code, fmt::format("register {} ranges on {}: {}", ranges.size(), name_, why));
  };
  if (ranges.empty()) refuse(errc::zero_length, "a region needs at least one byte");
  if (ranges.size() == 1) return;  // checked like any single range
  if (options.device != nullptr) refuse(errc::invalid_argument, "device memory and several ranges exclude each other");
  if (options.dmabuf) refuse(errc::invalid_argument, "dmabuf and several ranges exclude each other");
  if (overlaps(options.usage, usage::flush_persistent))
    refuse(errc::invalid_argument, "usage flush_persistent and several ranges exclude each other");
  std::uint64_t sum = 0;
  std::size_t separate = 0;
  const std::byte* end = nullptr;
  for (const std::span<std::byte> range : ranges) {
    if (is_everything(range)) refuse(errc::invalid_argument, "everything is a region by itself");
    if (range.empty()) refuse(errc::zero_length, "each range needs at least one byte");
    if (range.data() == nullptr) refuse(errc::null_address, "each range needs an address");
    if (detail::wraps_around(range)) refuse(errc::out_of_range, "a range wraps around");
    if (range.size() > std::numeric_limits<std::uint64_t>::max() - sum)
      refuse(errc::out_of_range, "the ranges together have 2^64 bytes or more");
    sum += range.size();
    if (range.data() != std::exchange(end, range.data() + range.size())) ++separate;
  }
  if (separate > capabilities_.max_ranges) {
    refuse(
        errc::not_supported,
        fmt::format("a region has at most {} ranges, but for those that adjoin: register each, and move them as a list",
                    capabilities_.max_ranges));
  }
  const std::uint64_t first =
      options.zero_based ? 0 : options.iova.value_or(reinterpret_cast<std::uintptr_t>(ranges.front().data()));
  if (sum - 1 > std::numeric_limits<std::uint64_t>::max() - first) {
    refuse(errc::out_of_range, fmt::format("the ranges wrap around, counted from address {:#x}", first));
  }
}

void registrar::check_device(const registration_options& options) const {
  const auto exclude = [&](bool wanted, const char* option) {
    if (!wanted) return;
    throw error(errc::invalid_argument,
                fmt::format("register memory of {} on {}: device memory and {} exclude each other",
                            options.device->name(), name_, option));
  };
  exclude(options.iova.has_value(), "iova");
  exclude(options.zero_based, "zero_based");
  exclude(options.requested_key.has_value(), "requested_key");
  exclude(options.disabled, "disabled");
  exclude(options.on_demand, "on_demand");
  exclude(options.lazy, "lazy");
  exclude(options.dmabuf.has_value(), "dmabuf");
  exclude(options.huge_pages, "huge_pages");
  exclude(overlaps(options.usage, usage::atomic_dst), "usage atomic_dst");
}

// With on_demand the owner flushes. The owner cannot make pinned pages persistent, because a device's writes do not
// make them dirty.
bool registrar::is_flushed_by_device(const registration_options& options) const noexcept {
  return capabilities_.device_flush && !options.on_demand && overlaps(options.usage, usage::flush_persistent);
}

void registrar::check_persistent(std::span<const std::byte> memory, const registration_options& options) const {
  if (!overlaps(options.usage, usage::flush_persistent) || is_flushed_by_device(options)) return;
  const std::string why_not = detail::why_not_persistent(memory);
  if (why_not.empty()) return;
  throw error(errc::not_supported,
              fmt::format("register {} bytes on {} with usage flush_persistent, which is for memory "
                          "of files: {}",
                          memory.size(), name_, why_not));
}

// Opens a key by which peers ask this process to do what a fabric cannot: to copy, if a fabric does not reach the
// memory, or to make the memory persistent, if the device does not. Opens no key if the fabrics do all that is needed.
void registrar::open_by_owner(memory_record& target, const registration_options& options) const {
  usage open = is_flushed_by_device(options) ? usage::none : options.usage & usage::flush_persistent;
  std::shared_ptr<memory_device> device;
  if (options.device != nullptr) {
    open = do_reach_all(target) ? usage::none : options.usage & peer_usages;
    device = options.device->shared_from_this();
  }
  if (open == usage::none) return;
  const bool is_direct = device != nullptr && options.direct;
  target.owners_key = detail::owner_keys::of_process().open(
      {.record = &target, .device = std::move(device), .memory = target.bytes, .uses = open, .direct = is_direct});
}

// The usages that may be registered. Those of device memory do not depend on the fabric, because the owner can copy.
usage registrar::usages_for(const registration_options& options) const noexcept {
  constexpr usage by_copies = usage::send | usage::recv | usage::read_src | usage::read_dst | usage::write_src |
                              usage::write_dst | usage::bind_window | usage::flush_visibility;
  return options.device != nullptr ? by_copies : capabilities_.usages;
}

void registrar::check_supported(const registration_options& options) const {
  const auto need = [this](bool supported, bool wanted, const std::string& option) {
    if (wanted && !supported) {
      throw error(errc::not_supported, fmt::format("register memory on {} with the option {}", name_, option));
    }
  };
  need(capabilities_.iova, options.iova.has_value(), "iova");
  need(capabilities_.zero_based, options.zero_based, "zero_based");
  need(capabilities_.requested_key, options.requested_key.has_value(), "requested_key");
  need(capabilities_.disabled, options.disabled, "disabled");
  need(capabilities_.on_demand, options.on_demand, "on_demand");
  need(capabilities_.lazy, options.lazy, "lazy");
  need(capabilities_.dmabuf, options.dmabuf.has_value(), "dmabuf");
  const usage beyond = options.usage & ~usages_for(options);
  if (beyond != usage::none) need(false, true, "usage " + to_string(beyond));
  if (!capabilities_.pins || options.on_demand || !overlaps(options.usage, usage::flush_persistent)) return;
  if (is_flushed_by_device(options)) return;
  throw error(errc::not_supported,
              fmt::format("register memory on {} with usage flush_persistent: this needs on_demand, because what a "
                          "device writes to pinned pages does not make them dirty",
                          name_));
}

}  // namespace weft::mr
