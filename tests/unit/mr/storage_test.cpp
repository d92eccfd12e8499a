// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/persistence.hpp>

#include <latch>

#include "kit/test.hpp"

namespace weft::mr::detail {
namespace {

std::latch* begun = nullptr;
std::latch* may_fail = nullptr;
std::atomic<bool> is_first = true;

int fail_first(std::span<std::byte>) noexcept {
  if (!is_first.exchange(false)) return 0;
  begun->count_down();
  may_fail->wait();
  return -EIO;
}

// The first to ask hears of the writes that were lost, and others' among them.
TEST(storage, that_has_lost_writes_succeeds_for_nobody_who_asked_meanwhile_or_asks_later) {
  std::latch in_progress(1);
  std::latch second_begins(1);
  begun = &in_progress;
  may_fail = &second_begins;
  storage disk(fail_first);
  bool first = true;
  bool second = true;
  {
    const std::jthread one([&] { first = disk.write({}); });
    in_progress.wait();
    const std::jthread two([&] {
      second_begins.count_down();
      second = disk.write({});
    });
  }
  EXPECT_FALSE(first);
  EXPECT_FALSE(second);
  EXPECT_FALSE(disk.write({}));
}

TEST(storage, has_lost_nothing_when_memory_was_unmapped) {
  static bool is_mapped;
  is_mapped = false;
  storage disk([](std::span<std::byte>) noexcept { return std::exchange(is_mapped, true) ? 0 : -ENOMEM; });
  EXPECT_FALSE(disk.write({}));
  EXPECT_TRUE(disk.write({}));
}

}  // namespace
}  // namespace weft::mr::detail
