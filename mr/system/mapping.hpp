// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/backing_file.hpp>
#include <weft/runtime/system/system_calls.hpp>

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

/// What may be done with the memory of a file.
enum class file_access : std::uint8_t { read_write, read_only };

/// Memory, mapped and zero: anonymous, or of a file that other processes can map too.
class mapping {
 public:
  static constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;   ///< a page of 2 MiB
  static constexpr std::size_t giant_page_bytes = std::size_t{1} << 30;  ///< a page of 1 GiB

  /// Maps `bytes`, a multiple of the page size, of anonymous memory; its pages come when they are touched. Huge pages
  /// are tried if asked for and if `bytes` is a multiple of theirs, the largest first. The pages come from NUMA node
  /// `node` as long as that has some; -1: from wherever they are first touched. Throws errc::no_memory, or the system's
  /// error.
  mapping(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls);

  /// The same, of a new file in memory that has no name and goes with the mapping: memfd_create(2). file() can be
  /// handed to another process, which cannot change its length (F_SEAL_SHRINK and F_SEAL_GROW of fcntl(2)), so that no
  /// access here is SIGBUS for that. Whether transparent huge pages are to be had, the system says apart:
  /// /sys/kernel/mm/transparent_hugepage/shmem_enabled, which most leave at "never".
  ///
  /// Its pages are there at once: one that could not be had later would be SIGBUS too, and no error. A child of fork(2)
  /// does not have the memory (MADV_DONTFORK), which it would otherwise share with its parent.
  ///
  /// With file_access::read_only whoever is handed the file can map it for reading alone (F_SEAL_FUTURE_WRITE, since
  /// Linux 5.1); this mapping is written all the same.
  [[nodiscard]] static mapping in_memory_file(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls,
                                              file_access others = file_access::read_write);

  /// Maps `bytes` of a file that is somebody else's, from file.offset on, which is a multiple of its page size; where
  /// its pages are huge, `bytes` is one too, or munmap(2) refuses. What is written is seen by everybody who maps it.
  /// The descriptor is not closed; file() names it, so it stays open as long as that is used.
  ///
  /// Of a file that another process has made, check the size and the seals first: where it can be made shorter, any
  /// access may be SIGBUS.
  [[nodiscard]] static mapping of_file(const backing_file& file, std::size_t bytes, weft::system_calls& calls,
                                       file_access access = file_access::read_write);

  mapping(mapping&& other) noexcept;
  mapping& operator=(mapping&&) = delete;
  ~mapping();

  /// The first byte.
  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
  /// In bytes.
  [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }
  /// The first byte, as for a range.
  [[nodiscard]] std::byte* begin() const noexcept { return data(); }
  /// One behind the last byte.
  [[nodiscard]] std::byte* end() const noexcept { return data() + size(); }
  /// What can be handed to another process, so that it maps the same; without a descriptor if the memory is anonymous.
  /// Borrowed: of a mapping in a file of its own it is closed with that.
  [[nodiscard]] const backing_file& file() const noexcept { return file_; }
  /// How large its pages are.
  [[nodiscard]] page_kind pages() const noexcept { return pages_; }
  /// Why they are not as large as they could be, although that was asked for, in words.
  [[nodiscard]] const std::string& pages_reason() const noexcept { return reason_; }
  /// The NUMA node that its pages come from, if it has some; -1: none in particular.
  [[nodiscard]] int node() const noexcept { return node_; }
  /// Why it is not the one that was asked for, in words.
  [[nodiscard]] const std::string& node_reason() const noexcept { return node_reason_; }

 private:
  enum class origin : std::uint8_t { anonymous, new_file };
  /// Which call has failed, and its errno; null: none has.
  struct refusal {
    const char* call = nullptr;
    int number = 0;
  };

  explicit mapping(weft::system_calls& calls) noexcept : calls_(&calls) {}
  void make(std::size_t bytes, bool huge_pages, int node, origin from);
  [[nodiscard]] bool map_huge(std::size_t bytes, page_kind pages, origin from);
  void map_transparent(std::size_t bytes, origin from);
  void map_small(std::size_t bytes, origin from);
  void ask_for_huge_pages();
  [[nodiscard]] refusal map(std::size_t bytes, page_kind pages, origin from) noexcept;
  [[nodiscard]] refusal map_file(std::size_t bytes, file_access access) noexcept;
  [[nodiscard]] refusal make_file(std::size_t bytes, page_kind pages) noexcept;
  void provide_pages();
  void seal(file_access others);
  void prefer(int node);
  void close_file() noexcept;

  weft::system_calls* calls_;
  std::span<std::byte> memory_;
  backing_file file_;
  bool owns_file_ = false;
  page_kind pages_ = page_kind::small;
  std::string reason_;
  int node_ = -1;
  std::string node_reason_;
};

}  // namespace weft::mr
