// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/mapping.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <array>
#include <cassert>
#include <cerrno>
#include <system_error>
#include <utility>

// Since Linux 6.3; the headers may be older.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
// Since Linux 5.1.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace weft::mr {
namespace {

constexpr int protection = PROT_READ | PROT_WRITE;
constexpr int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;

std::string words(int number) { return std::generic_category().message(number); }

error failure_of(std::size_t bytes, const char* call, int number) {
  const std::string what = fmt::format("map {} bytes: {}: {}", bytes, call, words(number));
  if (number == ENOMEM || number == ENOSPC) return {errc::no_memory, what};
  return system_error(number, what);
}

}  // namespace

// Delegates to the other constructor, so that the destructor unmaps the memory if building a reason throws.
mapping::mapping(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls) : mapping(calls) {
  make(bytes, huge_pages, node, origin::anonymous);
}

mapping mapping::in_memory_file(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls,
                                file_access others) {
  mapping made(calls);
  made.make(bytes, huge_pages, node, origin::new_file);
  made.provide_pages();
  made.seal(others);
  return made;
}

mapping mapping::of_file(const backing_file& file, std::size_t bytes, weft::system_calls& calls, file_access access) {
  assert(bytes != 0);
  mapping made(calls);
  made.file_ = file;
  if (const refusal why = made.map_file(bytes, access); why.call != nullptr)
    throw failure_of(bytes, why.call, why.number);
  return made;
}

mapping::mapping(mapping&& other) noexcept
    : calls_(other.calls_),
      memory_(std::exchange(other.memory_, {})),
      file_(std::exchange(other.file_, {})),
      owns_file_(std::exchange(other.owns_file_, false)),
      pages_(other.pages_),
      reason_(std::move(other.reason_)),
      node_(other.node_),
      node_reason_(std::move(other.node_reason_)) {}

mapping::~mapping() {
  if (!memory_.empty()) {
    [[maybe_unused]] const int failure = calls_->munmap(memory_.data(), memory_.size());
    assert(failure == 0);
  }
  close_file();
}

void mapping::make(std::size_t bytes, bool huge_pages, int node, origin from) {
  assert(bytes != 0);
  if (huge_pages && bytes % huge_page_bytes != 0) {
    reason_ = fmt::format("{} bytes are not a multiple of 2 MiB", bytes);
    huge_pages = false;
  }
  const bool giant = huge_pages && bytes % giant_page_bytes == 0 && map_huge(bytes, page_kind::giant, from);
  if (!huge_pages) {
    map_small(bytes, from);
  } else if (!giant && !map_huge(bytes, page_kind::huge, from)) {
    map_transparent(bytes, from);
  }
  if (node >= 0) prefer(node);
}

// The kernel reserves the pages here, so that touching them later cannot fail.
bool mapping::map_huge(std::size_t bytes, page_kind pages, origin from) {
  const bool giant = pages == page_kind::giant;
  const refusal why = map(bytes, pages, from);
  if (why.call != nullptr) {
    reason_ +=
        fmt::format("{}{} of {} pages: {} ({})", reason_.empty() ? "" : "; ", why.call, giant ? "1 GiB" : "2 MiB",
                    words(why.number), giant ? "hugepages-1048576kB/nr_hugepages" : "vm.nr_hugepages");
    return false;
  }
  pages_ = pages;
  return true;
}

// Has the kernel take the pages from `node`. Called before the first page is touched. Prefers the node instead of
// binding to it, because another node's memory is better than none. See mbind(2).
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

// Huge pages are possible only where the mapping is aligned to them. So the function maps 2 MiB more than it needs, and
// cuts off the surplus at both ends. The kernel aligns files by itself if they may have huge pages at all.
void mapping::map_transparent(std::size_t bytes, origin from) {
  if (from == origin::new_file) {
    map_small(bytes, from);
    return ask_for_huge_pages();
  }
  int failure = 0;
  void* const address = calls_->mmap(bytes + huge_page_bytes, protection, anonymous, &failure);
  if (address == nullptr) return map_small(bytes, from);
  auto* const first = static_cast<std::byte*>(address);
  const std::size_t before =
      (huge_page_bytes - reinterpret_cast<std::uintptr_t>(first) % huge_page_bytes) % huge_page_bytes;
  const std::size_t after = huge_page_bytes - before;
  if (before != 0) calls_->munmap(first, before);
  if (after != 0) calls_->munmap(first + before + bytes, after);
  memory_ = {first + before, bytes};
  ask_for_huge_pages();
}

void mapping::ask_for_huge_pages() {
  if (const int refused = calls_->madvise(memory_.data(), memory_.size(), MADV_HUGEPAGE); refused != 0) {
    reason_ += fmt::format("; madvise(MADV_HUGEPAGE): {}", words(-refused));
    return;
  }
  pages_ = page_kind::transparent;
}

void mapping::map_small(std::size_t bytes, origin from) {
  const refusal why = map(bytes, page_kind::small, from);
  if (why.call != nullptr) throw failure_of(bytes, why.call, why.number);
}

mapping::refusal mapping::map(std::size_t bytes, page_kind pages, origin from) noexcept {
  if (from == origin::new_file) {
    refusal why = make_file(bytes, pages);
    if (why.call == nullptr) why = map_file(bytes, file_access::read_write);
    if (why.call != nullptr) close_file();
    return why;
  }
  constexpr auto huge = static_cast<int>(MAP_HUGETLB | MAP_HUGE_2MB);
  constexpr auto giant = static_cast<int>(MAP_HUGETLB | MAP_HUGE_1GB);
  const int size = pages == page_kind::giant ? giant : pages == page_kind::huge ? huge : 0;
  refusal why;
  void* const address = calls_->mmap(bytes, protection, anonymous | size, &why.number);
  if (address == nullptr) {
    why.call = pages == page_kind::small ? "mmap" : "mmap(MAP_HUGETLB)";
    return why;
  }
  memory_ = {static_cast<std::byte*>(address), bytes};
  return {};
}

// Makes a file that cannot be executed, because a system may demand that (vm.memfd_noexec). Older kernels refuse the
// flag.
mapping::refusal mapping::make_file(std::size_t bytes, page_kind pages) noexcept {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (pages != page_kind::small) flags |= MFD_HUGETLB | (pages == page_kind::giant ? MFD_HUGE_1GB : MFD_HUGE_2MB);
  int made = calls_->memfd_create("weft", flags | MFD_NOEXEC_SEAL);
  if (made == -EINVAL) made = calls_->memfd_create("weft", flags);
  if (made < 0) return {"memfd_create", -made};
  file_ = {.descriptor = made, .offset = 0};
  owns_file_ = true;
  if (const int refused = calls_->ftruncate(made, static_cast<off_t>(bytes)); refused < 0)
    return {"ftruncate", -refused};
  return {};
}

// Seals the file against changes of its length, and, with file_access::read_only, against writable mappings. Called
// after the file is mapped, because F_SEAL_FUTURE_WRITE spares existing mappings.
void mapping::seal(file_access others) {
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (others == file_access::read_only) seals |= F_SEAL_FUTURE_WRITE;
  const int refused = calls_->fcntl(file_.descriptor, F_ADD_SEALS, seals);
  if (refused < 0) throw failure_of(memory_.size(), "fcntl(F_ADD_SEALS)", -refused);
}

// Maps the file. MADV_DONTFORK keeps a child from writing into its parent's messages; if the kernel refuses this
// advice, the memory is used all the same.
mapping::refusal mapping::map_file(std::size_t bytes, file_access access) noexcept {
  refusal why;
  const int wanted = access == file_access::read_only ? PROT_READ : protection;
  void* const address =
      calls_->mmap_file(bytes, wanted, MAP_SHARED, file_.descriptor, static_cast<off_t>(file_.offset), &why.number);
  if (address == nullptr) {
    why.call = "mmap";
    return why;
  }
  memory_ = {static_cast<std::byte*>(address), bytes};
  static_cast<void>(calls_->madvise(address, bytes, MADV_DONTFORK));
  return {};
}

// Provides all pages of the file, through the mapping, because fallocate(2) ignores the mapping's NUMA node and huge
// pages; before Linux 5.14 there is only fallocate(2). Pages of MAP_HUGETLB are reserved already.
void mapping::provide_pages() {
  if (pages_ == page_kind::huge || pages_ == page_kind::giant) return;
  const char* call = "madvise(MADV_POPULATE_WRITE)";
  int refused = calls_->madvise(memory_.data(), memory_.size(), MADV_POPULATE_WRITE);
  if (refused == -EINVAL) {
    call = "fallocate";
    do {
      refused = calls_->fallocate(file_.descriptor, 0, 0, static_cast<off_t>(memory_.size()));
    } while (refused == -EINTR);
  }
  if (refused != 0) throw failure_of(memory_.size(), call, -refused);
}

void mapping::close_file() noexcept {
  if (owns_file_) static_cast<void>(calls_->close(file_.descriptor));
  owns_file_ = false;
  file_ = {};
}

}  // namespace weft::mr
