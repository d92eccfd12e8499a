// SPDX-License-Identifier: Apache-2.0
#include <weft/net/software/key_table.hpp>

#include <limits>

#include "mr/support.hpp"

namespace weft::net::software {
namespace {

constexpr std::uint64_t top = std::numeric_limits<std::uint64_t>::max();
constexpr key_rights both{.remote_read = true, .remote_write = true};

/// What a caller of write_place() does.
access_status copy_to(key_table::reader& to, std::uint32_t stag, std::uint64_t offset, std::span<const std::byte> data,
                      stream_id stream = 1) {
  for (;;) {
    const key_table::reader::place at = to.write_place(stag, offset, data.size(), stream);
    if (at.status != access_status::ok || data.empty()) return at.status;
    std::memcpy(at.data, data.data(), at.size);
    if (at.size == data.size()) return at.status;
    data = data.subspan(at.size);
    offset += at.size;
  }
}

class key_table_test : public ::testing::Test {
 protected:
  access_status write(std::uint32_t stag, std::uint64_t offset, std::size_t bytes, stream_id stream = 1) {
    const key_table::reader::batch inside(reader);
    return copy_to(reader, stag, offset, std::span<const std::byte>(incoming).first(bytes), stream);
  }
  access_status read(std::uint32_t stag, std::uint64_t offset, std::size_t bytes, stream_id stream = 1) {
    const key_table::reader::batch inside(reader);
    return reader.read(stag, offset, std::span(outgoing).first(bytes), stream);
  }
  access_status check(std::uint32_t stag, std::uint64_t offset, std::uint64_t bytes, stream_id stream = 1) {
    const key_table::reader::batch inside(reader);
    return reader.check_read(stag, offset, bytes, stream);
  }

  key_table table;
  key_table::reader reader{table};
  std::vector<std::byte> memory = std::vector<std::byte>(100);
  std::vector<std::byte> incoming = std::vector<std::byte>(200, std::byte{7});
  std::vector<std::byte> outgoing = std::vector<std::byte>(200);
};

TEST_F(key_table_test, rights_are_kept_apart) {
  const std::uint32_t readable = table.insert(memory, 0, {.remote_read = true});
  const std::uint32_t writable = table.insert(memory, 0, {.remote_write = true});
  EXPECT_EQ(write(readable, 0, 1), access_status::access);
  EXPECT_EQ(read(readable, 0, 1), access_status::ok);
  EXPECT_EQ(write(writable, 0, 1), access_status::ok);
  EXPECT_EQ(read(writable, 0, 1), access_status::access);
  EXPECT_EQ(check(writable, 0, 1), access_status::access);
}

TEST_F(key_table_test, atomics_change_one_aligned_word_and_need_a_right_of_their_own) {
  alignas(8) std::array<std::byte, 32> words{};
  const auto atomic = [&](std::uint32_t stag, std::uint64_t offset, std::uint64_t& previous) {
    const key_table::reader::batch inside(reader);
    EXPECT_EQ(reader.check_atomic(stag, offset, 1) == access_status::ok, offset == 1008);
    return reader.atomic({.stag = stag, .offset = offset, .operand = 3}, previous, 1);
  };
  const std::uint32_t stag = table.insert(words, 1000, {.remote_atomic = true});
  std::uint64_t previous = 77;
  EXPECT_EQ(atomic(stag, 1004, previous), access_status::misaligned);
  EXPECT_EQ(atomic(stag, 1025, previous), access_status::bounds);
  EXPECT_EQ(previous, 77U);
  EXPECT_EQ(atomic(stag, 1008, previous), access_status::ok);
  EXPECT_EQ(previous, 0U);
  EXPECT_EQ(atomic(stag, 1008, previous), access_status::ok);
  EXPECT_EQ(previous, 3U);
  EXPECT_EQ(words[8], std::byte{6});
  EXPECT_EQ(write(stag, 1000, 8), access_status::access);
  EXPECT_EQ(read(stag, 1000, 8), access_status::access);
  table.erase(stag);

  const std::uint32_t closed = table.insert(words, 1000, both);
  EXPECT_EQ(atomic(closed, 1000, previous), access_status::access);
  table.erase(closed);
  // The peer's address is fine, ours is not.
  const std::uint32_t shifted = table.insert(std::span(words).subspan(4), 1000, {.remote_atomic = true});
  EXPECT_EQ(atomic(shifted, 1000, previous), access_status::misaligned);
  table.erase(shifted);
}

TEST_F(key_table_test, agrees_with_plain_arithmetic_on_any_access) {
  std::mt19937_64 random(5);
  const auto draw = [&](std::uint64_t near) {
    switch (random() % 4) {
      case 0:
        return near + random() % 8 - 4;
      case 1:
        return random() % 300;
      case 2:
        return top - random() % 300;
      default:
        return static_cast<std::uint64_t>(random());
    }
  };
  for (const std::uint64_t address : {std::uint64_t{0}, std::uint64_t{1000}, top - 99, top - 150}) {
    const std::uint32_t stag = table.insert(memory, address, both);
    for (int round = 0; round < 5000; ++round) {
      const std::uint64_t offset = draw(address + random() % 2 * 100);
      const std::uint64_t bytes = draw(100) % (std::uint64_t{1} << 32);
      __extension__ using wide = unsigned __int128;
      const wide end = wide{offset} + bytes;
      const bool wraps = end > wide{1} << 64;
      const bool within = offset >= address && end <= wide{address} + memory.size();
      const access_status expected = wraps ? access_status::wrap : within ? access_status::ok : access_status::bounds;
      ASSERT_EQ(check(stag, offset, bytes), expected) << offset << " " << bytes;
    }
    table.erase(stag);
  }
}

TEST_F(key_table_test, ranges_of_one_key_behave_like_one_range_whatever_their_sizes) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 10000; ++round) {
    // The memory in pieces, in another order than peers see them.
    std::vector<std::span<std::byte>> ranges;
    for (std::span<std::byte> left(memory); !left.empty();) {
      const std::size_t bytes = std::min<std::size_t>(left.size(), 1 + random() % 40);
      ranges.push_back(left.first(bytes));
      left = left.subspan(bytes);
    }
    std::shuffle(ranges.begin(), ranges.end(), random);
    std::ranges::fill(memory, std::byte{0});
    std::vector<std::byte> model(memory.size());
    const std::uint32_t stag = table.open({.ranges = ranges, .address = 1000, .rights = both});
    for (int access = 0; access < 4; ++access) {
      const std::uint64_t from = random() % 110;
      const std::size_t bytes = random() % 110;
      const bool within = from + bytes <= model.size();
      std::ranges::fill(incoming, static_cast<std::byte>(random()));
      ASSERT_EQ(write(stag, 1000 + from, bytes), within ? access_status::ok : access_status::bounds);
      if (within)
        std::ranges::copy(std::span(incoming).first(bytes), model.begin() + static_cast<std::ptrdiff_t>(from));
    }
    ASSERT_EQ(read(stag, 1000, model.size()), access_status::ok);
    ASSERT_TRUE(std::ranges::equal(model, std::span(outgoing).first(model.size()))) << round;
    std::vector<std::byte> gathered;
    for (const auto& range : ranges) gathered.insert(gathered.end(), range.begin(), range.end());
    ASSERT_EQ(gathered, model) << round;
    table.erase(stag);
  }
}

TEST_F(key_table_test, no_atomic_operation_works_on_a_word_in_two_ranges) {
  alignas(8) std::array<std::byte, 16> words{};
  const std::span<std::byte> ranges[] = {std::span(words).first(12), std::span(words).last(4)};
  const std::uint32_t stag = table.open({.ranges = ranges, .rights = {.remote_atomic = true}});
  const key_table::reader::batch inside(reader);
  EXPECT_EQ(reader.check_atomic(stag, 0, 1), access_status::ok);
  EXPECT_EQ(reader.check_atomic(stag, 8, 1), access_status::misaligned);
}

TEST_F(key_table_test, disabled_a_key_opens_nothing_and_nobody_is_inside) {
  const std::uint32_t stag = table.insert(memory, 0, both);
  table.disable(stag);
  EXPECT_EQ(write(stag, 0, 1), access_status::invalid_stag);
  EXPECT_EQ(read(stag, 0, 1), access_status::invalid_stag);
  table.enable(stag);
  EXPECT_EQ(write(stag, 0, 1), access_status::ok);

  std::atomic<bool> inside = false;
  std::atomic<bool> leave = false;
  std::atomic<bool> left = false;
  const std::jthread other([&] {
    key_table::reader another(table);
    const key_table::reader::batch batch(another);
    inside = true;
    while (!leave) std::this_thread::yield();
    left = true;
  });
  while (!inside) std::this_thread::yield();
  const std::jthread releaser([&] { leave = true; });
  table.disable(stag);
  EXPECT_TRUE(left);
}

TEST_F(key_table_test, a_key_for_one_connection_is_of_no_use_to_another) {
  const std::uint32_t stag = table.insert(memory, 0, both, 5);
  EXPECT_EQ(write(stag, 0, 1, 5), access_status::ok);
  EXPECT_EQ(write(stag, 0, 1, 6), access_status::not_associated);
  EXPECT_EQ(read(stag, 0, 1, 6), access_status::not_associated);
}

TEST_F(key_table_test, a_peer_revokes_the_keys_of_its_connection_only) {
  const std::uint32_t scoped = table.insert(memory, 0, both, 5);
  const std::uint32_t open = table.insert(memory, 0, both);
  const auto invalidate = [&](std::uint32_t stag, stream_id stream) {
    const key_table::reader::batch inside(reader);
    return reader.invalidate(stag, stream);
  };
  EXPECT_EQ(invalidate(open, 5), access_status::access);
  EXPECT_EQ(invalidate(scoped, 6), access_status::not_associated);
  EXPECT_EQ(invalidate(scoped + 1, 5), access_status::invalid_stag);
  EXPECT_EQ(write(scoped, 0, 1, 5), access_status::ok);
  EXPECT_EQ(invalidate(scoped, 5), access_status::ok);
  EXPECT_EQ(write(scoped, 0, 1, 5), access_status::invalid_stag);
  EXPECT_EQ(invalidate(scoped, 5), access_status::invalid_stag);
  table.erase(scoped);
}

TEST_F(key_table_test, a_requested_key_is_given_once) {
  table.insert_as(0x12345678, memory, 0, both);
  EXPECT_EQ(write(0x12345678, 0, 1), access_status::ok);
  const auto again = [&](std::uint32_t stag) {
    return test::code_thrown_by([&] { table.insert_as(stag, memory, 0, both); });
  };
  EXPECT_EQ(again(0x12345678), errc::duplicate_key);
  EXPECT_EQ(again(0), errc::invalid_argument);
  EXPECT_EQ(table.size(), 1U);
  table.erase(0x12345000);
  EXPECT_EQ(table.size(), 1U) << "another key was erased in its place";
  table.erase(0x12345678);
  EXPECT_EQ(again(0x12345678), std::error_code());
}

TEST_F(key_table_test, keys_are_random_and_not_used_again_soon) {
  std::set<std::uint32_t> seen;
  std::uint32_t all_bits = 0;
  std::uint32_t common_bits = ~0U;
  for (int i = 0; i < 500; ++i) {
    const std::uint32_t stag = table.insert(memory, 0, both);
    EXPECT_NE(stag, 0U);
    EXPECT_TRUE(seen.insert(stag).second);
    all_bits |= stag;
    common_bits &= stag;
    table.erase(stag);
  }
  EXPECT_EQ(all_bits, ~0U);
  EXPECT_EQ(common_bits, 0U);
}

TEST_F(key_table_test, holds_many_regions_at_a_time) {
  // More than it has lists, so that every one of them is long enough to lose one in its middle.
  std::vector<std::uint32_t> stags;
  std::vector<std::byte> many(60'000);
  for (std::size_t i = 0; i < many.size(); ++i) stags.push_back(table.insert({&many[i], 1}, i, both));
  EXPECT_EQ(table.size(), many.size());
  for (std::size_t i = 0; i < many.size(); ++i) ASSERT_EQ(write(stags[i], i, 1), access_status::ok);
  EXPECT_EQ(static_cast<std::size_t>(std::count(many.begin(), many.end(), std::byte{7})), many.size());

  for (std::size_t i = 0; i < many.size(); i += 3) table.erase(stags[i]);
  EXPECT_EQ(table.size(), many.size() - many.size() / 3);
  for (std::size_t i = 0; i < many.size(); ++i)
    ASSERT_EQ(write(stags[i], i, 1), i % 3 == 0 ? access_status::invalid_stag : access_status::ok) << i;
}

TEST_F(key_table_test, erase_waits_for_the_batches_that_others_are_in) {
  const std::uint32_t stag = table.insert(memory, 0, both);
  std::atomic<bool> returned{false};
  std::thread owner;
  {
    const key_table::reader::batch inside(reader);
    owner = std::thread([&] {
      table.erase(stag);
      returned = true;
    });
    while (reader.check_read(stag, 0, 1, 1) == access_status::ok) std::this_thread::yield();
    for (int look = 0; look < 10'000; ++look) {
      std::this_thread::yield();
      EXPECT_FALSE(returned);
    }
  }
  owner.join();
  EXPECT_TRUE(returned);
}

TEST_F(key_table_test, two_executors_may_erase_inside_their_batches_at_the_same_time) {
  const auto live = [this] {
    key_table::reader own(table);
    for (int round = 0; round < 2000; ++round) {
      const std::uint32_t stag = table.insert(memory, 0, {.remote_read = true});
      const key_table::reader::batch inside(own);
      EXPECT_EQ(own.check_read(stag, 0, 100, 1), access_status::ok);
      table.erase(stag);
      EXPECT_EQ(own.check_read(stag, 0, 100, 1), access_status::invalid_stag);
    }
  };
  std::thread other(live);
  live();
  other.join();
  EXPECT_EQ(table.size(), 0U);
}

TEST_F(key_table_test, nothing_is_written_under_a_revoked_key_once_erase_has_returned) {
  std::atomic<std::uint32_t> stag{0};
  std::atomic<std::uint64_t> hits{0};
  const auto attack = [&](const std::stop_token& over, std::uint64_t half) {
    key_table::reader own(table);
    const std::vector<std::byte> data(50, std::byte{0xff});
    while (!over.stop_requested()) {
      {
        const key_table::reader::batch inside(own);
        for (int i = 0; i < 10; ++i) {
          if (copy_to(own, stag, half, data) == access_status::ok) ++hits;
        }
      }
      std::this_thread::yield();
    }
  };
  const std::jthread first(attack, 0);
  const std::jthread second(attack, 50);
  for (int round = 0; round < 300; ++round) {
    auto target = std::make_unique<std::array<std::byte, 100>>();
    const std::uint32_t key = table.insert(*target, 0, both);
    const std::uint64_t before = hits;
    stag = key;
    while (hits == before) std::this_thread::yield();
    table.erase(key);
    target->fill(std::byte{0});  // ours again: a race, if anybody still writes
    const auto clean = [&] { return std::count(target->begin(), target->end(), std::byte{0}) == 100; };
    for (int look = 0; look < 10; ++look) ASSERT_TRUE(clean());
  }
}

// The last of a peer's writes may carry no bytes, so that nothing but its key has been looked up.
TEST_F(key_table_test, counts_the_end_of_a_write_for_the_connection_that_the_key_is_for_alone) {
  mr::detail::write_counter_core counter;
  const std::span<std::byte> whole(memory);
  const std::uint32_t stag = table.open({.ranges = {&whole, 1}, .rights = both, .stream = 5, .enabled = false});
  table.count_writes(stag, counter);
  table.enable(stag);
  const key_table::reader::batch inside(reader);
  ASSERT_EQ(copy_to(reader, stag, 0, std::span<const std::byte>(incoming).first(1), 5), access_status::ok);
  reader.written(stag, 6);
  EXPECT_EQ(counter.value(), 0U);
  reader.written(stag, 5);
  EXPECT_EQ(counter.value(), 1U);
  EXPECT_EQ(reader.invalidate(stag, 5), access_status::ok);
  reader.written(stag, 5);
  EXPECT_EQ(counter.value(), 1U);
  table.erase(stag);
  reader.written(stag, 5);
  EXPECT_EQ(counter.value(), 1U);
}

TEST(key_table, remembers_the_keys_that_it_has_revoked_and_not_those_that_a_peer_has) {
  key_table table;
  key_table::reader reader(table);
  std::vector<std::byte> memory(8);
  const std::uint32_t ours = table.insert(memory, 0, {.remote_read = true}, 1);
  const std::uint32_t theirs = table.insert(memory, 0, {.remote_read = true}, 1);
  EXPECT_FALSE(table.was_revoked(ours));
  {
    const key_table::reader::batch inside(reader);
    EXPECT_EQ(reader.invalidate(theirs, 1), access_status::ok);
  }
  table.erase(ours);
  table.erase(theirs);
  EXPECT_TRUE(table.was_revoked(ours));
  EXPECT_FALSE(table.was_revoked(theirs));
  EXPECT_FALSE(table.was_revoked(0));
  for (int i = 0; i < 1024; ++i) table.erase(table.insert(memory, 0, {.remote_read = true}, 1));
  EXPECT_FALSE(table.was_revoked(ours));  // it remembers a bounded number
}

}  // namespace
}  // namespace weft::net::software
