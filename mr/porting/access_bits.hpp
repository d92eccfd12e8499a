// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/registration.hpp>

#include <cstdint>

/// @file
/// Translates the access bits of other interfaces, for programs that come from there. The values are those of the
/// manual pages named below; no header of theirs is included. Unknown bits are errc::unknown_usage.

namespace weft::mr::porting {

namespace detail {
[[noreturn]] void throw_unknown_bits(const char* interface, std::uint64_t bits);
[[noreturn]] void throw_without_local_write();

struct bit_meaning {
  std::uint64_t bit;
  usage meaning;
};

template <class Table>
constexpr usage translate(const char* interface, std::uint64_t bits, const Table& table) {
  usage purpose = usage::none;
  for (const bit_meaning& entry : table) {
    if ((bits & entry.bit) != 0) purpose |= entry.meaning;
    bits &= ~entry.bit;
  }
  if (bits != 0) throw_unknown_bits(interface, bits);
  return purpose;
}
}  // namespace detail

/// Translates IBV_ACCESS_* of ibv_reg_mr(3), which give both the usage of memory and options for its registration.
/// Local reading is always allowed. Remote writes and atomics without LOCAL_WRITE are errc::invalid_argument, because
/// verbs refuses them too.
[[nodiscard]] constexpr registration_options options_from_ibv_access(std::uint64_t bits) {
  constexpr std::uint64_t local_write = 1 << 0;
  constexpr std::uint64_t remote_write = 1 << 1;
  constexpr std::uint64_t remote_atomic = 1 << 3;
  constexpr std::uint64_t zero_based = 1 << 5;
  constexpr std::uint64_t on_demand = 1 << 6;
  constexpr std::uint64_t huge_pages = 1 << 7;
  constexpr std::uint64_t relaxed_ordering = 1 << 20;
  constexpr detail::bit_meaning table[] = {
      {local_write, usage::recv | usage::read_dst},
      {remote_write, usage::write_dst},
      {1 << 2, usage::read_src},  // REMOTE_READ
      {remote_atomic, usage::atomic_dst},
      {1 << 4, usage::bind_window},       // MW_BIND
      {1 << 8, usage::flush_visibility},  // FLUSH_GLOBAL
      {1 << 9, usage::flush_persistent},  // FLUSH_PERSISTENT
      {zero_based | on_demand | huge_pages | relaxed_ordering, usage::none},
  };
  if ((bits & (remote_write | remote_atomic)) != 0 && (bits & local_write) == 0) detail::throw_without_local_write();
  registration_options options;
  options.usage = usage::send | usage::write_src | detail::translate("IBV_ACCESS", bits, table);
  options.zero_based = (bits & zero_based) != 0;
  options.on_demand = (bits & on_demand) != 0;
  options.huge_pages = (bits & huge_pages) != 0;
  options.relaxed_ordering = (bits & relaxed_ordering) != 0;
  return options;
}

/// The usages of memory registered by rdma_reg_msgs(3), rdma_reg_read(3) and rdma_reg_write(3). Like these calls, each
/// allows all local operations.
/// @{
inline constexpr usage usage_of_rdma_reg_msgs = usage::send | usage::recv | usage::read_dst | usage::write_src;
inline constexpr usage usage_of_rdma_reg_read = usage_of_rdma_reg_msgs | usage::read_src;
inline constexpr usage usage_of_rdma_reg_write = usage_of_rdma_reg_msgs | usage::write_dst;
/// @}

/// Translates the access bits of fi_mr(3). Remote atomics have no bits of their own there, but share FI_REMOTE_READ and
/// FI_REMOTE_WRITE: add usage::atomic_dst if they are wanted.
[[nodiscard]] constexpr usage usage_from_fi_access(std::uint64_t bits) {
  constexpr detail::bit_meaning table[] = {
      {1 << 8, usage::read_dst},    // FI_READ
      {1 << 9, usage::write_src},   // FI_WRITE
      {1 << 10, usage::recv},       // FI_RECV
      {1 << 11, usage::send},       // FI_SEND
      {1 << 12, usage::read_src},   // FI_REMOTE_READ
      {1 << 13, usage::write_dst},  // FI_REMOTE_WRITE
  };
  return detail::translate("FI", bits, table);
}

/// Translates RPMA_MR_USAGE_* of rpma_mr_reg(3).
[[nodiscard]] constexpr usage usage_from_rpma(std::uint64_t bits) {
  constexpr detail::bit_meaning table[] = {
      {1 << 0, usage::read_src},
      {1 << 1, usage::read_dst},
      {1 << 2, usage::write_src},
      {1 << 3, usage::write_dst},
      {1 << 4, usage::flush_visibility},  // FLUSH_TYPE_VISIBILITY
      {1 << 5, usage::flush_persistent},  // FLUSH_TYPE_PERSISTENT
      {1 << 6, usage::send},
      {1 << 7, usage::recv},
  };
  return detail::translate("RPMA_MR_USAGE", bits, table);
}

}  // namespace weft::mr::porting
