// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/domain.hpp>
#include <weft/mr/page.hpp>
#include <weft/mr/population.hpp>
#include <weft/runtime/system_calls.hpp>

#include <sys/mman.h>

#include <algorithm>

// Since Linux 5.14; the C library may be older.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace weft::mr::detail {
namespace {

constexpr std::uintptr_t huge_page_bytes = std::uintptr_t{2} << 20;

constexpr std::uintptr_t round_up(std::uintptr_t value, std::uintptr_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

population::population(const region_state& target) noexcept
    : target_(target),
      calls_(target.options.system_calls != nullptr ? *target.options.system_calls : system_calls::kernel()),
      bytes_(target.size()),
      pieces_(static_cast<std::size_t>((bytes_ + piece_bytes - 1) / piece_bytes)) {}

bool population::wanted(const region_state& target) noexcept {
  const registration_options& options = target.options;
  return target.domain->pins() && !options.on_demand && !options.dmabuf && target.size() >= least_bytes;
}

bool population::next() noexcept {
  const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
  if (index >= pieces_) return false;
  const std::uint64_t from = std::uint64_t{index} * piece_bytes;
  const std::uint64_t length = std::min<std::uint64_t>(piece_bytes, bytes_ - from);
  provide(from, length);
  if (target_.options.progress != nullptr) target_.options.progress->fetch_add(static_cast<std::size_t>(length));
  return true;
}

void population::provide(std::uint64_t from, std::uint64_t length) const noexcept {
  if (target_.ranges.empty()) return provide(target_.bytes.subspan(from, length));
  for (const std::span<std::byte> range : target_.ranges) {
    if (length == 0) return;
    if (from >= range.size()) {
      from -= range.size();
      continue;
    }
    const auto here = range.subspan(from, std::min<std::uint64_t>(length, range.size() - from));
    provide(here);
    from = 0;
    length -= here.size();
  }
}

void population::provide(std::span<std::byte> memory) const noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t end = begin + memory.size();
  const std::uintptr_t first_huge = round_up(begin, huge_page_bytes);
  const std::uintptr_t last_huge = end / huge_page_bytes * huge_page_bytes;
  const auto advise = [this](std::uintptr_t from, std::uintptr_t to, int advice) {
    // Rounded addresses of what is there. NOLINTNEXTLINE(performance-no-int-to-ptr)
    static_cast<void>(calls_.madvise(reinterpret_cast<void*>(from), to - from, advice));
  };
  if (first_huge < last_huge) advise(first_huge, last_huge, MADV_HUGEPAGE);
  advise(begin / page_bytes() * page_bytes(), round_up(end, page_bytes()), MADV_POPULATE_WRITE);
}

}  // namespace weft::mr::detail
