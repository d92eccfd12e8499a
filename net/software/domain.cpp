// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/everything.hpp>
#include <weft/net/software/direct_memory.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/net/software/kernel_copy.hpp>
#include <weft/net/software/mapped_memory.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <cstdint>
#include <memory>
#include <utility>

namespace weft::net::software {
namespace {

constexpr mr::domain_capabilities abilities{
    .usages = mr::usage::send | mr::usage::recv | mr::usage::read_src | mr::usage::read_dst | mr::usage::write_src |
              mr::usage::write_dst | mr::usage::atomic_dst | mr::usage::bind_window | mr::usage::flush_visibility |
              mr::usage::flush_persistent,
    .iova = true,
    .zero_based = true,
    .requested_key = true,
    .max_ranges = 1024,
    .disabled = true,
    .gates = true,
    .lazy = true,
    .everything = true,
};

std::uint32_t stag_of(const mr::registration& item) noexcept { return static_cast<std::uint32_t>(item.remote_key); }

// Does not use rights_for_iwarp(): read sinks have keys of their own here, which the engine makes up and checks.
constexpr key_rights rights_of(mr::usage purpose) noexcept {
  const mr::access rights = mr::rights_for(purpose);
  return {.remote_read = includes(rights, mr::access::remote_read),
          .remote_write = includes(rights, mr::access::remote_write),
          .remote_atomic = includes(rights, mr::access::remote_atomic)};
}

std::uint64_t address_of(std::span<std::byte> memory, const mr::registration_options& options) noexcept {
  if (options.zero_based) return 0;
  return options.iova.value_or(reinterpret_cast<std::uintptr_t>(memory.data()));
}

// Checks that the ranges can be registered, and throws if not. Returns whether their pages may be missing at an access.
bool check_all(std::span<const std::span<std::byte>> ranges, const mr::registration_options& options,
               std::string_view name) {
  if (options.lazy) {
    check_kernel_copies(name);
    return true;
  }
  system_calls& calls = options.system_calls != nullptr ? *options.system_calls : system_calls::kernel();
  bool may_shrink = false;
  for (const std::span<std::byte> range : ranges) {
    may_shrink = check_memory(range, options.usage, name, calls) || may_shrink;
  }
  return may_shrink;
}

}  // namespace

constinit char domain::shrinks_ = 0;

domain::domain(system_calls& calls, std::string name)
    : mr::domain(std::move(name), abilities), calls_(calls), keys_(calls) {}

mr::registration domain::do_register(std::span<std::byte> memory, const mr::registration_options& options) {
  return do_register_ranges({&memory, 1}, options);
}

mr::registration domain::do_register_ranges(std::span<const std::span<std::byte>> ranges,
                                            const mr::registration_options& options) {
  const bool may_shrink = check_all(ranges, options, name());
  mr::registration item;
  item.address = address_of(ranges.front(), options);
  const key_rights rights = rights_of(options.usage);
  const key_table::opening what{.ranges = ranges,
                                .address = item.address,
                                .rights = rights,
                                .enabled = !options.disabled,
                                .may_shrink = may_shrink};
  if (may_shrink) item.handle = &shrinks_;
  if (options.requested_key) {
    const auto key = static_cast<std::uint32_t>(*options.requested_key);
    keys_.open_as(key, what);
    item.remote_key = key;
  } else if (rights.remote_read || rights.remote_write || rights.remote_atomic) {
    item.remote_key = keys_.open(what);
  }
  return item;
}

direct_memory* domain::direct_of(const mr::registration& item) noexcept {
  if (item.handle == nullptr || item.handle == &shrinks_) return nullptr;
  return static_cast<std::shared_ptr<direct_memory>*>(item.handle)->get();
}

// Huge pages of a file can be taken away by everybody who can write it, although its size is sealed.
bool domain::may_lose_pages(const mr::registration& item) noexcept {
  const direct_memory* const whole = direct_of(item);
  return whole == nullptr ? item.handle == &shrinks_ : whole->may_lose_pages();
}

void domain::do_share(mr::memory_record& target) {
  mr::registration& item = fabric() == 0 ? target.registration : target.others[fabric() - 1];
  auto whole = std::make_unique<std::shared_ptr<direct_memory>>(direct_memory::make(target, calls_));
  if (const std::uint32_t stag = stag_of(item); stag != 0) keys_.share(stag, **whole);
  item.handle = whole.release();
}

void domain::do_count_writes(const mr::registration& item, mr::detail::write_counter_core& counter) {
  keys_.count_writes(stag_of(item), counter);
}

void domain::do_enable(const mr::registration& item) { keys_.enable(stag_of(item)); }

void domain::do_refresh(mr::detail::region_state& target, const mr::registration_options& options) {
  mr::registration& item = target.registration;
  const std::uint32_t stag = stag_of(item);
  const bool now_shrinks = check_all(target.all_ranges(), options, name()) && item.handle == nullptr;
  keys_.disable(stag);
  if (now_shrinks) {
    keys_.note_that_it_may_shrink(stag);
    item.handle = &shrinks_;
  }
  if (target.enabled) keys_.enable(stag);
}

void domain::do_deregister(mr::registration& item) noexcept {
  if (const std::uint32_t stag = stag_of(item); stag != 0) keys_.erase(stag);
  if (direct_memory* const whole = direct_of(item); whole != nullptr) {
    whole->revoke();
    delete static_cast<std::shared_ptr<direct_memory>*>(item.handle);
  }
}

}  // namespace weft::net::software
