// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/backing_file.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weft::mr {

/// The kind of pages behind a mapping.
enum class page_kind : std::uint8_t {
  small,        ///< the machine's smallest
  transparent,  ///< the kernel was asked for huge ones and decides by itself: madvise(2), MADV_HUGEPAGE
  huge,         ///< 2 MiB each: mmap(2), MAP_HUGETLB
  giant,        ///< 1 GiB each: mmap(2), MAP_HUGETLB
};

/// How the memory of a file may be used.
enum class file_access : std::uint8_t { read_write, read_only };

/// Mapped memory, which is zero if it is new: anonymous, or of a file that other processes can map too.
class mapping {
 public:
  static constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;   ///< a page of 2 MiB
  static constexpr std::size_t giant_page_bytes = std::size_t{1} << 30;  ///< a page of 1 GiB

  /// Maps `bytes`, a multiple of the page size, of anonymous memory; the kernel provides each page when it is first
  /// touched. With `huge_pages` it tries the kinds of pages whose size divides `bytes`, the largest first. The pages
  /// come from NUMA node `node` as long as that has free ones; if the kernel refuses the node, node_reason() says why.
  /// -1: the pages come from the node of the thread that first touches them. Throws errc::no_memory, or the system's
  /// error.
  mapping(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls);

  /// Maps `bytes` of a new file in memory, which has no name and is closed with the mapping: memfd_create(2). file()
  /// can be handed to another process, which cannot change its length (F_SEAL_SHRINK and F_SEAL_GROW of fcntl(2)), so
  /// that no access here raises SIGBUS for that reason. Transparent huge pages depend on a system setting of their own,
  /// /sys/kernel/mm/transparent_hugepage/shmem_enabled, which is "never" on most systems.
  ///
  /// This call provides all pages, because a page that the kernel cannot provide later would raise SIGBUS, too, instead
  /// of an error. A child of fork(2) does not have the memory (MADV_DONTFORK), which it would otherwise share with its
  /// parent. Throws as the constructor does.
  ///
  /// With file_access::read_only, a process that gets the file can map it for reading only (F_SEAL_FUTURE_WRITE, since
  /// Linux 5.1); this mapping stays writable.
  [[nodiscard]] static mapping in_memory_file(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls,
                                              file_access others = file_access::read_write);

  /// Maps `bytes` of an existing file from file.offset on, which must be a multiple of the file's page size. If the
  /// pages are huge, `bytes` must be such a multiple too, or munmap(2) fails. Writes are visible to everybody who maps
  /// the file. A child of fork(2) does not have the memory. The caller keeps the descriptor, and must leave it open as
  /// long as file() is used. Throws as the constructor does.
  ///
  /// If another process has made the file, check its size and seals first: any access to a file that can become shorter
  /// may raise SIGBUS.
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
  /// One past the last byte.
  [[nodiscard]] std::byte* end() const noexcept { return data() + size(); }
  /// The file behind the memory, by which another process can map it; without a descriptor if the memory is anonymous.
  /// Borrowed: the file of in_memory_file() is closed with the mapping.
  [[nodiscard]] const backing_file& file() const noexcept { return file_; }
  /// The kind of its pages; for of_file() always page_kind::small, even if the file has huge pages.
  [[nodiscard]] page_kind pages() const noexcept { return pages_; }
  /// Why the pages are not as large as they could be, if huge pages were requested.
  [[nodiscard]] const std::string& pages_reason() const noexcept { return reason_; }
  /// The NUMA node that the pages come from as long as that has free ones; -1: no particular node.
  [[nodiscard]] int node() const noexcept { return node_; }
  /// Why node() is not the one that was requested.
  [[nodiscard]] const std::string& node_reason() const noexcept { return node_reason_; }

 private:
  enum class origin : std::uint8_t { anonymous, new_file };
  /// The call that failed, and its errno; `call` is null if none has failed.
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
