// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/io/system_calls.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weft::mr {

/// What pages stand behind a mapping.
enum class page_kind : std::uint8_t {
  small,        ///< the machine's smallest
  transparent,  ///< the kernel was asked for huge ones and decides by itself: madvise(2), MADV_HUGEPAGE
  huge,         ///< 2 MiB each: mmap(2), MAP_HUGETLB
  giant,        ///< 1 GiB each: the same
};

/// Anonymous memory, mapped and zero; its pages come when they are touched.
class mapping {
 public:
  static constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
  static constexpr std::size_t giant_page_bytes = std::size_t{1} << 30;

  /// Maps `bytes`, a multiple of the page size. Huge pages are tried if asked for and if `bytes` is a multiple of
  /// theirs, the largest first. The pages come from NUMA node `node` as long as that has some; -1: from wherever they
  /// are first touched. Throws errc::no_memory, or the system's error.
  mapping(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls);
  mapping(mapping&& other) noexcept;
  mapping& operator=(mapping&&) = delete;
  ~mapping();

  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }
  [[nodiscard]] page_kind pages() const noexcept { return pages_; }
  /// Why they are not as large as they could be, although that was asked for, in words.
  [[nodiscard]] const std::string& pages_reason() const noexcept { return reason_; }
  /// The NUMA node that its pages come from, if it has some; -1: none in particular.
  [[nodiscard]] int node() const noexcept { return node_; }
  /// Why it is not the one that was asked for, in words.
  [[nodiscard]] const std::string& node_reason() const noexcept { return node_reason_; }

 private:
  bool map_huge(std::size_t bytes, page_kind pages);
  void map_transparent(std::size_t bytes);
  void map_small(std::size_t bytes);
  void prefer(int node);

  weft::system_calls* calls_;
  std::span<std::byte> memory_;
  page_kind pages_ = page_kind::small;
  std::string reason_;
  int node_ = -1;
  std::string node_reason_;
};

}  // namespace weft::mr
