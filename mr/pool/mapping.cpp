// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/mapping.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <sys/mman.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <system_error>
#include <utility>

namespace weft::mr {
namespace {

constexpr int protection = PROT_READ | PROT_WRITE;
constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS;

std::string words(int number) { return std::generic_category().message(number); }

}  // namespace

mapping::mapping(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls) : calls_(&calls) {
  assert(bytes != 0);
  if (huge_pages && bytes % huge_page_bytes != 0) {
    reason_ = fmt::format("{} bytes are not a multiple of 2 MiB", bytes);
    huge_pages = false;
  }
  const bool giant = huge_pages && bytes % giant_page_bytes == 0 && map_huge(bytes, page_kind::giant);
  if (!huge_pages) {
    map_small(bytes);
  } else if (!giant && !map_huge(bytes, page_kind::huge)) {
    map_transparent(bytes);
  }
  if (node >= 0) prefer(node);
}

mapping::mapping(mapping&& other) noexcept
    : calls_(other.calls_),
      memory_(std::exchange(other.memory_, {})),
      pages_(other.pages_),
      reason_(std::move(other.reason_)),
      node_(other.node_),
      node_reason_(std::move(other.node_reason_)) {}

mapping::~mapping() {
  if (memory_.empty()) return;
  [[maybe_unused]] const int failure = calls_->munmap(memory_.data(), memory_.size());
  assert(failure == 0);
}

// The kernel reserves the pages here, so that touching them later cannot fail.
bool mapping::map_huge(std::size_t bytes, page_kind pages) {
  const bool giant = pages == page_kind::giant;
  int failure = 0;
  void* const address =
      calls_->mmap(bytes, protection, flags | MAP_HUGETLB | (giant ? MAP_HUGE_1GB : MAP_HUGE_2MB), &failure);
  if (address == nullptr) {
    reason_ +=
        fmt::format("{}mmap(MAP_HUGETLB) of {} pages: {} ({})", reason_.empty() ? "" : "; ", giant ? "1 GiB" : "2 MiB",
                    words(failure), giant ? "hugepages-1048576kB/nr_hugepages" : "vm.nr_hugepages");
    return false;
  }
  memory_ = {static_cast<std::byte*>(address), bytes};
  pages_ = pages;
  return true;
}

// Before the first page is touched. Another node's memory is better than none: preferred, not bound. See mbind(2).
void mapping::prefer(int node) {
  constexpr std::size_t bits = 1024;
  constexpr std::size_t bits_of_word = 8 * sizeof(unsigned long);
  std::array<unsigned long, bits / bits_of_word> nodes{};
  const auto index = static_cast<std::size_t>(node);
  int refused = -EINVAL;
  if (index < bits) {
    nodes[index / bits_of_word] = 1UL << index % bits_of_word;
    refused = calls_->mbind(memory_.data(), memory_.size(), MPOL_PREFERRED, nodes.data(), bits, 0);
  }
  if (refused != 0) {
    node_reason_ = fmt::format("mbind to NUMA node {}: {}", node, words(-refused));
  } else {
    node_ = node;
  }
}

// Huge pages are possible only where the mapping is aligned to them: map more, and cut off both ends.
void mapping::map_transparent(std::size_t bytes) {
  int failure = 0;
  void* const address = calls_->mmap(bytes + huge_page_bytes, protection, flags, &failure);
  if (address == nullptr) return map_small(bytes);
  auto* const from = static_cast<std::byte*>(address);
  const std::size_t before =
      (huge_page_bytes - reinterpret_cast<std::uintptr_t>(from) % huge_page_bytes) % huge_page_bytes;
  const std::size_t after = huge_page_bytes - before;
  if (before != 0) calls_->munmap(from, before);
  if (after != 0) calls_->munmap(from + before + bytes, after);
  memory_ = {from + before, bytes};
  if (const int refused = calls_->madvise(memory_.data(), bytes, MADV_HUGEPAGE); refused != 0) {
    reason_ += fmt::format("; madvise(MADV_HUGEPAGE): {}", words(-refused));
    return;
  }
  pages_ = page_kind::transparent;
}

void mapping::map_small(std::size_t bytes) {
  int failure = 0;
  void* const address = calls_->mmap(bytes, protection, flags, &failure);
  if (address == nullptr) throw error(errc::no_memory, fmt::format("map {} bytes: mmap: {}", bytes, words(failure)));
  memory_ = {static_cast<std::byte*>(address), bytes};
}

}  // namespace weft::mr
