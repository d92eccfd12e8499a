// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/everything.hpp>
#include <weft/mr/system/mapped_ranges.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/net/software/mapped_memory.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fmt/core.h>

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string>

namespace weft::net::software {
namespace {

constexpr mr::usage reading_uses =
    mr::usage::send | mr::usage::write_src | mr::usage::read_src | mr::usage::atomic_dst | mr::usage::flush_visibility;
// bind_window counts, as with an RDMA device, because peers may write through windows.
constexpr mr::usage writing_uses =
    mr::usage::recv | mr::usage::read_dst | mr::usage::write_dst | mr::usage::atomic_dst | mr::usage::bind_window;

// Checks the last page alone, because a file that has it also has those before it.
bool reaches_as_far_as(std::uintptr_t end, system_calls& calls) noexcept {
  const std::size_t page = mr::detail::page_bytes();
  // The address of a mapped page. NOLINTNEXTLINE(performance-no-int-to-ptr)
  return calls.madvise(reinterpret_cast<void*>((end - 1) / page * page), page, MADV_POPULATE_READ) != -EFAULT;
}

}  // namespace

bool check_memory(std::span<const std::byte> memory, mr::usage uses, std::string_view name, system_calls& calls) {
  if (mr::is_everything(memory)) return false;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t end = begin + memory.size();
  const auto refuse = [&](std::uintptr_t at, const std::string& why) {
    throw system_error(EFAULT, fmt::format("register {} bytes on {} for {}: the memory at {:#x} {}", memory.size(),
                                           name, to_string(uses), at, why));
  };
  const auto ranges = mr::detail::mapped_ranges_of(memory);
  if (!ranges) return false;
  bool may_shrink = false;
  std::uintptr_t at = begin;
  for (const mr::detail::mapped_range& item : *ranges) {
    if (item.begin > at) break;
    if (!item.readable && (overlaps(uses, reading_uses) || !overlaps(uses, writing_uses)))
      refuse(at, "may not be read");
    if (!item.writable && overlaps(uses, writing_uses)) refuse(at, "may not be written");
    const std::uintptr_t last = std::min(end, item.end);
    if (item.may_shrink && !reaches_as_far_as(last, calls)) refuse(at, "lies beyond the end of its file");
    may_shrink = may_shrink || item.may_shrink;
    at = last;
  }
  if (at < end) refuse(at, "is not mapped");
  return may_shrink;
}

}  // namespace weft::net::software
