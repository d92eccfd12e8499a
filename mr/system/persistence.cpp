// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/mapped_ranges.hpp>
#include <weft/mr/system/page.hpp>
#include <weft/mr/system/persistence.hpp>

#include <fmt/core.h>

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>

namespace weft::mr::detail {
namespace {

bool is_in_memory(const struct statfs& found) noexcept {
  const auto kind = static_cast<std::uint64_t>(found.f_type);
  return kind == TMPFS_MAGIC || kind == RAMFS_MAGIC || kind == HUGETLBFS_MAGIC;
}

// A DAX device is persistent memory without a file system: see ndctl-create-namespace(1).
bool is_dax_device(const struct stat& file) {
  if (!S_ISCHR(file.st_mode)) return false;
  const auto link = fmt::format("/sys/dev/char/{}:{}/subsystem", ::major(file.st_rdev), ::minor(file.st_rdev));
  std::error_code unknown;
  return std::filesystem::read_symlink(link, unknown).filename() == "dax";
}

std::string why_not(const mapped_range& range, bool on_dax_device) {
  if (!range.has_file) return "it is not mapped from a file";
  if (!range.shared) return "it is a private mapping, whose changes never reach its file";
  struct stat file {};
  struct statfs found {};
  // The kernel appends " (deleted)" to the name of a file that has been deleted, so that no file is found.
  if (::stat(range.file.c_str(), &file) != 0 || ::statfs(range.file.c_str(), &found) != 0)
    return fmt::format("no file of the name '{}' can be found", range.file);
  if (on_dax_device) {
    return is_dax_device(file) ? std::string() : fmt::format("its file '{}' is no DAX device", range.file);
  }
  if (is_dax_device(file))
    return fmt::format("its file '{}' is a DAX device, for which no system call writes back caches", range.file);
  if (S_ISBLK(file.st_mode)) return {};  // a disk itself; only its name is in a file system in memory
  return is_in_memory(found) ? fmt::format("its file '{}' is in memory, not on a disk", range.file) : std::string();
}

std::string why_not(std::span<const std::byte> memory, bool on_dax_device) {
  const auto ranges = mapped_ranges_of(memory);
  if (!ranges) return "the kernel does not tell which file it is mapped from (/proc/self/maps)";
  if (ranges->empty()) return "it is not mapped";
  for (const mapped_range& each : *ranges) {
    if (std::string why = why_not(each, on_dax_device); !why.empty()) return why;
  }
  return {};
}

}  // namespace

std::string why_not_persistent(std::span<const std::byte> memory) { return why_not(memory, false); }

std::string why_not_dax(std::span<const std::byte> memory) { return why_not(memory, true); }

int make_persistent(std::span<std::byte> memory) noexcept {
  const std::size_t before = reinterpret_cast<std::uintptr_t>(memory.data()) % page_bytes();
  return ::msync(memory.data() - before, before + memory.size(), MS_SYNC) == 0 ? 0 : -errno;
}

bool storage::write(std::span<std::byte> memory) noexcept {
  const std::lock_guard lock(mutex_);
  if (has_lost_writes_) return false;
  const int failure = call_(memory);
  has_lost_writes_ = failure != 0 && failure != -ENOMEM;
  return failure == 0;
}

}  // namespace weft::mr::detail
