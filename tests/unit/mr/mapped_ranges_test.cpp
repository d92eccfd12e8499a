// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/mapped_ranges.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "kit/test.hpp"

namespace weft::mr::detail {
namespace {

constexpr std::size_t page = 4096;

std::span<const std::byte> at(std::uintptr_t from, std::size_t length) {
  // Nobody looks there. NOLINTNEXTLINE(performance-no-int-to-ptr)
  return {reinterpret_cast<const std::byte*>(from), length};
}

constexpr const char* maps =
    "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/a program with spaces\n"
    "00e03000-00e24000 rw-p 00000000 00:00 0           [heap]\n"
    "00e24000-00e25000 ---p 00000000 00:00 0 \n"
    "35b18000000-35b18200000 rw-p 00000000 00:0f 77    /anon_hugepage (deleted)\n"
    "35b18200000-35b18400000 rw-s 00000000 00:0f 78    /anon_hugepage (deleted)\n"
    "7f2a00000000-7f2a00001000 -w-s 00000000 00:01 42  /memfd:name (deleted)";

TEST(mapped_ranges, are_read_as_the_manual_shows_them) {
  const std::vector<mapped_range> program{
      {0x400000, 0x452000, true, false, false, true, true, "/usr/bin/a program with spaces"}};
  EXPECT_EQ(mapped_ranges_in(maps, at(0x451fff, 1)), program);
  EXPECT_EQ(mapped_ranges_in(maps, at(0x452000, 0xe03000 - 0x452000)), std::vector<mapped_range>());
  const std::vector<mapped_range> heap{{0xe03000, 0xe24000, true, true, false, false, false},
                                       {0xe24000, 0xe25000, false, false, false, false, false}};
  EXPECT_EQ(mapped_ranges_in(maps, at(0xe03005, 0x21fff)), heap);
  const std::vector<mapped_range> rest{
      {0x35b18000000, 0x35b18200000, true, true, false, false, false},
      {0x35b18200000, 0x35b18400000, true, true, true, true, false, "/anon_hugepage (deleted)"},
      {0x7f2a00000000, 0x7f2a00001000, false, true, true, true, true, "/memfd:name (deleted)"}};
  EXPECT_EQ(mapped_ranges_in(maps, at(0x35b18000000, std::size_t{1} << 47)), rest);
}

TEST(mapped_ranges, that_cannot_be_understood_are_not_guessed) {
  EXPECT_FALSE(mapped_ranges_in("00400000-00452000\n", at(0, 1)));
  EXPECT_FALSE(mapped_ranges_in("nothing\n", at(0, 1)));
  EXPECT_FALSE(mapped_ranges_in("\n", at(0, 1)));
}

TEST(mapped_ranges, are_what_has_been_mapped_whichever_way_the_kernel_is_asked) {
  constexpr int anonymous = MAP_PRIVATE | MAP_ANONYMOUS;
  void* const place = ::mmap(nullptr, 6 * page, PROT_NONE, anonymous, -1, 0);
  ASSERT_NE(place, MAP_FAILED);
  const auto begin = reinterpret_cast<std::uintptr_t>(place);
  auto* const bytes = static_cast<std::byte*>(place);
  const int file = ::memfd_create("mapped", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, 2 * page), 0);
  ASSERT_EQ(::munmap(bytes + page, page), 0);
  ASSERT_EQ(::mprotect(bytes + 2 * page, page, PROT_READ), 0);
  ASSERT_NE(::mmap(bytes + 3 * page, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0), MAP_FAILED);
  ASSERT_NE(::mmap(bytes + 4 * page, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0), MAP_FAILED);
  ::close(file);

  const std::span<const std::byte> middle(bytes + page, 4 * page);
  const std::vector<mapped_range> expected{
      {begin + 2 * page, begin + 3 * page, true, false, false, false, false},
      {begin + 3 * page, begin + 4 * page, true, true, true, true, true, "/memfd:mapped (deleted)"},
      {begin + 4 * page, begin + 5 * page, true, true, false, true, true, "/memfd:mapped (deleted)"}};
  EXPECT_EQ(mapped_ranges_of(middle), expected);
  std::ifstream self("/proc/self/maps");
  const std::string all{std::istreambuf_iterator<char>(self), {}};
  EXPECT_EQ(mapped_ranges_in(all, middle), expected);
  ::munmap(place, 6 * page);
}

}  // namespace
}  // namespace weft::mr::detail
