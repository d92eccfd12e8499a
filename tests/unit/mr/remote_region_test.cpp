// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/remote_ptr.hpp>

#include <fmt/core.h>

#include <limits>

#include "mr/support.hpp"

namespace weft::mr {
namespace {

constexpr std::uint64_t top = std::numeric_limits<std::uint64_t>::max();

remote_region example() { return {0x01020304, 0x1122334455667788, 4096, usage::read_src | usage::write_dst}; }

std::vector<std::byte> packed(const remote_region& region) {
  const auto wire = region.pack();
  return {wire.begin(), wire.end()};
}

static_assert(sizeof(remote_slice) <= 128, "a slice of four fabrics fits into two cache lines");

/// With a place on each fabric: keys of 4 bytes, and of 8.
remote_region example_of_many() {
  const remote_place places[] = {{.fabric = 0, .address = 0x1000, .key = 7},
                                 {.fabric = 1, .address = 0, .key = top},
                                 {.fabric = 2, .address = 0x3000, .key = std::uint64_t{1} << 32},
                                 {.fabric = 250, .address = top - 4095, .key = UINT32_MAX}};
  return {places, 4096, usage::read_src};
}

TEST(remote_region, with_one_place_travels_in_26_bytes_little_endian) {
  constexpr unsigned expected[] = {2, 1,    36,   0,    0,    0x10, 0,    0,    0,    0, 0, 0, 0,
                                   4, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 4, 3, 2, 1};
  const auto wire = example().pack();
  ASSERT_EQ(wire.size(), std::size(expected));
  for (std::size_t i = 0; i < wire.size(); ++i) EXPECT_EQ(std::to_integer<unsigned>(wire[i]), expected[i]) << i;
  EXPECT_EQ(remote_region::unpack(wire), example());
}

TEST(remote_region, with_the_largest_number_for_a_key_fits_an_inline_send) {
  EXPECT_EQ(packed(remote_region(top, 0, 1, usage::read_src)).size(), 30u);
}

TEST(remote_region, of_several_fabrics_survives_the_wire_with_keys_of_any_length) {
  const remote_region region = example_of_many();
  const std::vector<std::byte> wire = packed(region);
  EXPECT_EQ(wire.size(), 12u + 4 * 10 + 4 + 8 + 8 + 4);
  EXPECT_EQ(wire.size(), region.packed_bytes());
  EXPECT_LE(wire.size(), remote_region::max_packed_bytes);
  const remote_region again = remote_region::unpack(wire);
  EXPECT_EQ(again, region);
  EXPECT_EQ(again.on(1)->key, top);
  EXPECT_EQ(again.on(2)->key, std::uint64_t{1} << 32);
  EXPECT_EQ(again.on(250)->key, UINT32_MAX);
  EXPECT_EQ(again.on(3), nullptr);
  const remote_slice part = again.slice(96, 4000);
  for (const remote_place& each : part.places()) EXPECT_EQ(each.address, region.on(each.fabric)->address + 96);
}

remote_region example_that_counts() {
  remote_region region = example();
  region.count_by(0xA1B2C3D4);
  return region;
}

TEST(remote_region, tells_by_which_number_writes_are_counted) {
  const std::vector<std::byte> wire = packed(example_that_counts());
  EXPECT_EQ(wire.size(), 30u);
  EXPECT_EQ(wire.size(), example_that_counts().packed_bytes());
  EXPECT_EQ(wire[3], std::byte{0x80});
  EXPECT_EQ(wire[12], std::byte{0xD4});
  const remote_region again = remote_region::unpack(wire);
  EXPECT_EQ(again, example_that_counts());
  EXPECT_EQ(again.usage(), example().usage());
  EXPECT_EQ(again.slice(8, 16).counter(), 0xA1B2C3D4u);
  EXPECT_EQ(remote_region::unpack(packed(example())).counter(), 0u);
  remote_region largest = example_of_many();
  largest.count_by(1);
  EXPECT_EQ(remote_region::unpack(packed(largest)), largest);
}

TEST(remote_region, has_places_in_one_order_and_each_fabric_once) {
  const remote_place twice[] = {{.fabric = 1, .address = 0, .key = 7}, {.fabric = 1, .address = 0, .key = 8}};
  EXPECT_EQ(test::code_thrown_by([&] { remote_region(twice, 8, usage::read_src); }), errc::invalid_argument);
  EXPECT_EQ(test::code_thrown_by([&] { remote_region(std::span<const remote_place>(), 8, usage::read_src); }),
            errc::invalid_argument);
  const remote_place wraps[] = {{.fabric = 0, .address = 0, .key = 7}, {.fabric = 1, .address = top, .key = 8}};
  EXPECT_EQ(test::code_thrown_by([&] { remote_region(wraps, 2, usage::read_src); }), errc::out_of_range);
}

TEST(remote_region, is_read_off_the_front_of_a_longer_message) {
  std::array<std::byte, 200> message{};
  for (const remote_region& region : {example(), example_of_many()}) {
    const auto wire = region.pack();
    std::copy(wire.begin(), wire.end(), message.begin());
    EXPECT_EQ(remote_region::unpack(message), region);
  }
}

TEST(remote_region, cut_at_any_byte_it_is_a_clean_error) {
  for (const remote_region& region : {example(), example_of_many(), example_that_counts()}) {
    const std::vector<std::byte> wire = packed(region);
    for (std::size_t length = 0; length < wire.size(); ++length) {
      const auto cut = std::span(wire).first(length);
      EXPECT_EQ(test::code_thrown_by([&] { return remote_region::unpack(cut); }), errc::malformed) << length;
    }
  }
}

TEST(remote_region, what_is_wrong_with_it_is_said_in_words) {
  const auto words_of = [](std::size_t at, unsigned value) {
    std::vector<std::byte> wire = packed(example());
    wire[at] = static_cast<std::byte>(value);
    return test::words_thrown_by([&] { return remote_region::unpack(wire); });
  };
  EXPECT_NE(words_of(0, 1).find("version 1"), std::string::npos);
  EXPECT_NE(words_of(1, 0).find("names 0 fabrics"), std::string::npos);
  EXPECT_NE(words_of(1, 5).find("names 5 fabrics"), std::string::npos);
  EXPECT_NE(words_of(1, 2).find("cut off in a fabric's entry"), std::string::npos);
  EXPECT_NE(words_of(3, 0x40).find("unknown usage bits 0x4000"), std::string::npos);
  std::vector<std::byte> counted = packed(example_that_counts());
  std::fill_n(counted.begin() + 12, 4, std::byte{0});
  EXPECT_NE(
      test::words_thrown_by([&] { return remote_region::unpack(counted); }).find("counter number is missing or 0"),
      std::string::npos);
  EXPECT_NE(words_of(5, 0).find("length is zero"), std::string::npos);
  EXPECT_NE(words_of(11, 0xff).find("wrap"), std::string::npos);
  EXPECT_NE(words_of(13, 5).find("a key of 5 bytes"), std::string::npos);
  for (const unsigned bytes : {0u, 9u, 24u, 32u, 33u}) {
    const std::string words = fmt::format("a key of {} bytes is not possible: keys are numbers of 4 or 8 bytes", bytes);
    EXPECT_NE(words_of(13, bytes).find(words), std::string::npos);
  }
  EXPECT_NE(words_of(13, 8).find("cut off in a key"), std::string::npos);
}

TEST(remote_region, any_bytes_are_either_a_region_that_makes_sense_or_malformed) {
  std::minstd_rand random(7);
  std::size_t good = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> wire = packed(example_of_many());
    for (int flips = 0; flips < 3; ++flips) wire[random() % wire.size()] = static_cast<std::byte>(random());
    try {
      const remote_region region = remote_region::unpack(wire);
      EXPECT_TRUE(std::ranges::equal(region.pack(), std::span(wire).first(region.packed_bytes())));
      EXPECT_NE(region.size(), 0U);
      EXPECT_LE(region.size() - 1, top - region.address());
      EXPECT_EQ(region.usage() & ~known_usages, usage::none);
      ++good;
    } catch (const error& failure) {
      ASSERT_EQ(failure.code(), errc::malformed);
    }
  }
  EXPECT_GT(good, 0U);
}

TEST(remote_region, may_end_at_the_very_last_address_but_not_beyond) {
  EXPECT_NO_THROW(remote_region(1, top, 1, usage::read_src));
  EXPECT_NO_THROW(remote_region(1, 0, top, usage::read_src));
  EXPECT_EQ(test::code_thrown_by([] { remote_region(1, top, 2, usage::read_src); }), errc::out_of_range);
  EXPECT_EQ(test::code_thrown_by([] { remote_region(1, 8, 0, usage::read_src); }), errc::zero_length);
}

TEST(remote_slice, cannot_escape_its_region) {
  const remote_region region = example();
  const remote_slice part = region.slice(1000, 96);
  EXPECT_EQ(part.address(), region.address() + 1000);
  EXPECT_EQ(part.size(), 96U);
  EXPECT_EQ(part.key(), region.key());
  EXPECT_NO_THROW(static_cast<void>(region.slice(4096, 0)));
  for (const auto& [offset, length] : {std::pair<std::uint64_t, std::uint64_t>{0, 4097},
                                       {4096, 1},
                                       {4097, 0},
                                       {1, 4096},
                                       {top, 1},
                                       {1, top},
                                       {top, top},
                                       {top - 10, 12}}) {
    EXPECT_EQ(test::code_thrown_by([&] { return region.slice(offset, length); }), errc::out_of_range);
  }
  EXPECT_EQ(test::code_thrown_by([&] { return part.slice(0, 97); }), errc::out_of_range);
}

TEST(remote_slice, says_which_operation_its_usage_forbids) {
  const remote_slice part = example().slice(0, 8);
  EXPECT_TRUE(part.allows(usage::read_src | usage::write_dst));
  EXPECT_FALSE(part.allows(usage::read_src | usage::atomic_dst));
  EXPECT_NO_THROW(part.require(usage::write_dst, "write"));
  EXPECT_EQ(test::code_thrown_by([&] { part.require(usage::atomic_dst, "fetch_add"); }), errc::access_denied);
  const std::string words = test::words_thrown_by([&] { part.require(usage::atomic_dst, "fetch_add"); });
  EXPECT_NE(words.find("fetch_add"), std::string::npos);
  EXPECT_NE(words.find("read_src|write_dst"), std::string::npos);
}

struct record {
  std::uint64_t key;
  std::uint32_t value;
};

TEST(remote_span, counts_in_elements_and_cannot_be_left) {
  const remote_region region(7, 0x1000, 100, usage::read_src);
  const remote_span<record> records(region);
  EXPECT_EQ(records.size(), 6u);  // the rest is no whole one
  EXPECT_EQ(records.slice().size(), 96u);
  EXPECT_EQ(records[5].slice(), region.slice(80, 16));
  EXPECT_EQ(test::code_thrown_by([&] { return records[6]; }), errc::out_of_range);
  EXPECT_EQ(records.subspan(2, 3).slice(), region.slice(32, 48));
  EXPECT_EQ(test::code_thrown_by([&] { return records.subspan(4, 3); }), errc::out_of_range);
  EXPECT_EQ(test::code_thrown_by([&] { return records.subspan(1, top / 16 + 1); }), errc::out_of_range);
  EXPECT_EQ(test::code_thrown_by([&] { return records[top / 16 + 2]; }), errc::out_of_range);
}

TEST(remote_span, and_remote_ptr_begin_where_their_type_may_be) {
  const remote_region region(7, 0x1004, 96, usage::read_src);
  EXPECT_EQ(test::code_thrown_by([&] { return remote_span<record>(region); }), errc::misaligned);
  EXPECT_EQ(remote_span<std::uint32_t>(region).size(), 24u);
  EXPECT_EQ(test::code_thrown_by([&] { return remote_ptr<std::uint64_t>(region.slice(0, 8)); }), errc::misaligned);
  EXPECT_EQ(test::code_thrown_by([&] { return remote_ptr<std::uint64_t>(region.slice(4, 9)); }), errc::out_of_range);
  const remote_slice where = remote_ptr<std::uint64_t>(region.slice(4, 8));
  EXPECT_EQ(where, region.slice(4, 8));
}

}  // namespace
}  // namespace weft::mr
