// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/domain.hpp>

namespace weft::net::iwarp {
namespace {

constexpr mr::domain_capabilities abilities{
    .usages = mr::usage::send | mr::usage::recv | mr::usage::read_src | mr::usage::read_dst | mr::usage::write_src |
              mr::usage::write_dst | mr::usage::atomic_dst | mr::usage::bind_window | mr::usage::flush_visibility,
    .iova = true,
    .zero_based = true,
    .requested_key = true,
    .max_ranges = 1024,
    .disabled = true,
};

// Not rights_for_iwarp(): read sinks have keys of their own here, which the engine makes up and checks.
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

}  // namespace

domain::domain(system_calls& calls) : mr::domain("iwarp", abilities), keys_(calls) {}

mr::registration domain::do_register(std::span<std::byte> memory, const mr::registration_options& options) {
  return do_register_ranges({&memory, 1}, options);
}

mr::registration domain::do_register_ranges(std::span<const std::span<std::byte>> ranges,
                                            const mr::registration_options& options) {
  mr::registration item;
  item.address = address_of(ranges.front(), options);
  const key_rights rights = rights_of(options.usage);
  const key_table::opening what{
      .ranges = ranges, .address = item.address, .rights = rights, .enabled = !options.disabled};
  if (options.requested_key) {
    item.remote_key = static_cast<std::uint32_t>(*options.requested_key);
    keys_.open_as(item.remote_key, what);
  } else if (rights.remote_read || rights.remote_write || rights.remote_atomic) {
    item.remote_key = keys_.open(what);
  }
  return item;
}

void domain::do_count_writes(const mr::registration& item, mr::detail::write_counter_core& counter) {
  keys_.count_writes(item.remote_key, counter);
}

void domain::do_enable(const mr::registration& item) { keys_.enable(item.remote_key); }

void domain::do_refresh(mr::registration& item, const mr::detail::region_state& target) {
  keys_.disable(item.remote_key);
  if (target.enabled) keys_.enable(item.remote_key);
}

void domain::do_deregister(mr::registration& item) noexcept {
  if (item.remote_key != 0) keys_.erase(item.remote_key);
}

}  // namespace weft::net::iwarp
