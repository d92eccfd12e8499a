// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/mapped_ranges.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

namespace weft::mr::detail {
namespace {

// PROCMAP_QUERY of <linux/fs.h>, since Linux 6.11; the C library may be older.
struct procmap_query {
  std::uint64_t size;
  std::uint64_t query_flags;
  std::uint64_t query_addr;
  std::uint64_t vma_start;
  std::uint64_t vma_end;
  std::uint64_t vma_flags;
  std::uint64_t vma_page_size;
  std::uint64_t vma_offset;
  std::uint64_t inode;
  std::uint32_t dev_major;
  std::uint32_t dev_minor;
  std::uint32_t vma_name_size;
  std::uint32_t build_id_size;
  std::uint64_t vma_name_addr;
  std::uint64_t build_id_addr;
};
constexpr unsigned long ask = _IOWR('f', 17, procmap_query);
constexpr std::uint64_t flag_readable = 0x01;
constexpr std::uint64_t flag_writable = 0x02;
constexpr std::uint64_t flag_shared = 0x08;
constexpr std::uint64_t this_or_next = 0x10;

// The kernel names a file for private memory in huge pages (MAP_HUGETLB) too, but nobody can open that file. All other
// files, sealed ones included, count as files that may become shorter, except those of shared anonymous memory and
// shmget(2).
void note_file(mapped_range& range, std::uint64_t inode, std::string_view name) noexcept {
  range.has_file = inode != 0 && (range.shared || name != "/anon_hugepage (deleted)");
  range.may_shrink = range.has_file && name != "/anon_hugepage (deleted)" && name != "/dev/zero (deleted)" &&
                     !name.starts_with("/SYSV");
}

struct bounds {
  explicit bounds(std::span<const std::byte> memory) noexcept
      : begin(reinterpret_cast<std::uintptr_t>(memory.data())), end(begin + memory.size()) {}
  std::uintptr_t begin;
  std::uintptr_t end;
};

// Asks for one mapping at a time, so that the cost does not depend on what else is mapped.
std::optional<std::vector<mapped_range>> ask_for(int maps, const bounds& wanted) {
  std::vector<mapped_range> found;
  std::array<char, 4096> name{};  // PATH_MAX
  for (std::uintptr_t at = wanted.begin; at < wanted.end;) {
    procmap_query query{};
    query.size = sizeof query;
    query.query_flags = this_or_next;
    query.query_addr = at;
    query.vma_name_addr = reinterpret_cast<std::uintptr_t>(name.data());
    query.vma_name_size = static_cast<std::uint32_t>(name.size());
    if (::ioctl(maps, ask, &query) != 0) {
      if (errno == ENOENT) break;  // nothing is mapped at `at` or behind it
      return std::nullopt;
    }
    if (query.vma_start >= wanted.end) break;
    const std::string_view path(name.data(), query.vma_name_size != 0 ? query.vma_name_size - 1 : 0);
    mapped_range& range = found.emplace_back();
    range.begin = query.vma_start;
    range.end = query.vma_end;
    range.readable = (query.vma_flags & flag_readable) != 0;
    range.writable = (query.vma_flags & flag_writable) != 0;
    range.shared = (query.vma_flags & flag_shared) != 0;
    note_file(range, query.inode, path);
    if (range.has_file) range.file = path;
    at = query.vma_end;
  }
  return found;
}

std::optional<std::string> read_all(int file) {
  std::string text;
  std::array<char, 16384> piece{};
  for (;;) {
    const ssize_t bytes = ::read(file, piece.data(), piece.size());
    if (bytes == 0) return text;
    if (bytes < 0 && errno != EINTR) return std::nullopt;
    if (bytes > 0) text.append(piece.data(), static_cast<std::size_t>(bytes));
  }
}

// Takes a number and the character behind it off a line like "7f00a000-7f00c000 rw-p 00000000 fe:01 1234    /path".
template <class Number>
bool take_number(std::string_view& line, Number& value, int base) noexcept {
  const auto [end, failure] = std::from_chars(line.data(), line.data() + line.size(), value, base);
  line.remove_prefix(std::min(line.size(), static_cast<std::size_t>(end - line.data()) + 1));
  return failure == std::errc();
}

std::string_view take_word(std::string_view& line) noexcept {
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(line.size(), word.size() + 1));
  return word;
}

// Parses a line of /proc/self/maps, and leaves the name of the file in `line`. std::nullopt if the line is malformed.
std::optional<mapped_range> parse(std::string_view& line) noexcept {
  mapped_range range;
  std::uint64_t inode = 0;
  if (!take_number(line, range.begin, 16) || !take_number(line, range.end, 16)) return std::nullopt;
  const std::string_view rights = take_word(line);
  take_word(line);  // the offset
  take_word(line);  // the device
  if (rights.size() != 4 || !take_number(line, inode, 10)) return std::nullopt;
  line.remove_prefix(std::min(line.size(), line.find_first_not_of(' ')));
  range.readable = rights[0] == 'r';
  range.writable = rights[1] == 'w';
  range.shared = rights[3] == 's';
  note_file(range, inode, line);
  return range;
}

}  // namespace

std::optional<std::vector<mapped_range>> mapped_ranges_in(std::string_view maps, std::span<const std::byte> memory) {
  const bounds wanted(memory);
  std::vector<mapped_range> found;
  while (!maps.empty()) {
    std::string_view line = maps.substr(0, maps.find('\n'));
    maps.remove_prefix(std::min(maps.size(), line.size() + 1));
    const std::optional<mapped_range> range = parse(line);
    if (!range) return std::nullopt;
    if (range->begin >= wanted.end || wanted.begin >= range->end) continue;
    found.push_back(*range);
    if (range->has_file) found.back().file = line;
  }
  return found;
}

std::optional<std::vector<mapped_range>> mapped_ranges_of(std::span<const std::byte> memory) {
  const descriptor maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC), system_calls::kernel());
  if (!maps) return std::nullopt;
  if (auto found = ask_for(maps.fd(), bounds(memory))) return found;
  const std::optional<std::string> all = read_all(maps.fd());
  return all ? mapped_ranges_in(*all, memory) : std::nullopt;
}

}  // namespace weft::mr::detail
