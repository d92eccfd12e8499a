// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::mr {

/// All memory of the process, as it is now and will be, to be registered as one region whose slices lie anywhere:
/// region::slice(bytes). For operations of this side alone: no usage gives peers access, and no option changes
/// anything. errc::not_supported where domain_capabilities::everything is false: a mr::cache registers there what is
/// used.
///
/// What an operation uses is the program's affair as with memcpy(3): memory that is not mapped then, or a file that has
/// become shorter, ends the process or the connection. Over an RDMA device that is implicit on-demand paging:
/// ibv_reg_mr(3), with address 0 and length SIZE_MAX.
[[nodiscard]] inline std::span<std::byte> everything() noexcept {
  constexpr std::size_t never_mapped = 4096;  // the first page, by mmap_min_addr of proc_sys_vm(5)
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return {reinterpret_cast<std::byte*>(never_mapped), static_cast<std::size_t>(PTRDIFF_MAX) - never_mapped};
}
/// Whether a range is everything().
[[nodiscard]] inline bool is_everything(std::span<const std::byte> range) noexcept {
  return range.data() == everything().data() && range.size() == everything().size();
}

}  // namespace weft::mr
