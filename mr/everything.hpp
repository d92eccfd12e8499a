// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace weft::mr {

/// All memory of the process, as it is now and will be, to be registered as one region whose slices lie anywhere:
/// region::slice(bytes). It is for operations of this side alone, with relaxed_ordering as its only option: a usage for
/// peers or windows is errc::invalid_argument. errc::not_supported where domain_capabilities::everything is false:
/// there, use a mr::cache, which registers what is used.
///
/// A send, write or read of such a slice that is stopped under way ends its connection, and returns once the transport
/// has let go of the memory, as with a slice of any region. The program answers for the memory that an operation uses,
/// as with memcpy(3): memory that is not mapped then, or a file that has become shorter, ends the process or the
/// connection. Over an RDMA device, this region uses implicit on-demand paging: ibv_reg_mr(3), with address 0 and
/// length SIZE_MAX.
[[nodiscard]] inline std::span<std::byte> everything() noexcept {
  constexpr std::size_t begin = 4096;                // by default, vm.mmap_min_addr keeps the first page unmapped
  constexpr std::size_t end = std::size_t{1} << 48;  // mmap(2) without a hint yields nothing beyond
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}
/// Whether a range is everything().
[[nodiscard]] inline bool is_everything(std::span<const std::byte> range) noexcept {
  return range.data() == everything().data() && range.size() == everything().size();
}

}  // namespace weft::mr
