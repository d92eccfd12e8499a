// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>

#include "kit/test.hpp"
#include "kit/thrown.hpp"

namespace weft::mr {
namespace {

constexpr std::size_t words = 40;
constexpr std::size_t bytes = words * sizeof(std::uint64_t);

struct memory {
  alignas(8) std::array<std::byte, bytes> all{};

  [[nodiscard]] std::span<std::byte> at(std::size_t offset, std::size_t size) {
    return std::span(all).subspan(offset, size);
  }
};

memory numbered() {
  memory made;
  for (std::size_t i = 0; i < bytes; ++i) made.all[i] = static_cast<std::byte>(i % 251 + 1);
  return made;
}

// Any place on either side, any size: nothing is missing and nothing is touched beside it.
template <class Copy>
void expect_copies(Copy copy) {
  for (std::size_t to = 0; to < 9; ++to) {
    for (std::size_t from = 0; from < 9; ++from) {
      for (std::size_t size = 0; size < bytes - 16; ++size) {
        memory source = numbered();
        memory copied;
        memory expected;
        copy(copied.at(to, size), source.at(from, size));
        std::ranges::copy(source.at(from, size), expected.at(to, size).begin());
        ASSERT_EQ(copied.all, expected.all) << size << " bytes from " << from << " to " << to;
      }
    }
  }
}

TEST(shared_words, of_any_range_are_loaded_and_nothing_beside_it) {
  expect_copies([](std::span<std::byte> into, std::span<std::byte> shared) { load_shared(shared, into); });
}

TEST(shared_words, of_any_range_are_stored_and_nothing_beside_it) {
  expect_copies([](std::span<std::byte> shared, std::span<std::byte> from) { store_shared(shared, from); });
}

// A unit of one version has all its bytes alike.
template <class Unit>
bool is_whole(std::span<const std::byte> copy, std::size_t offset) {
  for (std::size_t at = (offset + sizeof(Unit) - 1) / sizeof(Unit) * sizeof(Unit);
       at + sizeof(Unit) <= offset + copy.size(); at += sizeof(Unit)) {
    std::array<std::byte, sizeof(Unit)> unit;
    std::memcpy(unit.data(), &copy[at - offset], sizeof unit);
    if (std::ranges::any_of(unit, [&](std::byte each) { return each != unit[0]; })) return false;
  }
  return true;
}

TEST(shared_words, units_that_another_thread_stores_are_whole) {
  memory shared;
  // Every range holds aligned units of each size, and none of those that its neighbour stores in part.
  constexpr std::array<std::pair<std::size_t, std::size_t>, 4> ranges{{{1, 151}, {152, 4}, {156, 2}, {162, 150}}};
  std::atomic<bool> over = false;
  std::thread writer([&] {
    for (unsigned version = 0; !over; ++version) {
      memory next;
      next.all.fill(static_cast<std::byte>(version));
      for (const auto& [offset, size] : ranges) store_shared(shared.at(offset, size), next.at(offset, size));
    }
  });
  for (int i = 0; i < 10'000; ++i) {
    memory copy;
    for (const auto& [offset, size] : ranges) {
      load_shared(shared.at(offset, size), copy.at(offset, size));
      EXPECT_TRUE(is_whole<std::uint64_t>(copy.at(offset, size), offset));
      EXPECT_TRUE(is_whole<std::uint32_t>(copy.at(offset, size), offset));
      EXPECT_TRUE(is_whole<std::uint16_t>(copy.at(offset, size), offset));
    }
  }
  over = true;
  writer.join();
}

TEST(shared_words, are_found_by_their_index_within_aligned_memory) {
  std::array<std::uint64_t, 3> numbers{1, 2, 3};
  const auto all = std::as_writable_bytes(std::span(numbers));
  EXPECT_EQ(&shared_word(all, 2), &numbers[2]);
  const auto refused = [](std::span<std::byte> memory, std::size_t index) {
    return test::code_thrown_by([&] { static_cast<void>(shared_word(memory, index)); });
  };
  EXPECT_EQ(refused(all, 3), errc::out_of_range);
  EXPECT_EQ(refused(all.first(23), 2), errc::out_of_range);
  EXPECT_EQ(refused(all.subspan(4), 0), errc::misaligned);
}

}  // namespace
}  // namespace weft::mr
