// SPDX-License-Identifier: Apache-2.0
#include <weft/net/native_protocol.hpp>
#include <weft/runtime/error.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "runtime_support.hpp"

namespace weft::net {
namespace {

greeting sample() {
  greeting self;
  self.receive_depth = 0x1234;
  self.receive_size = 0x12345678;
  self.features = {.atomics = true, .immediate = false, .large_frames = true};
  return self;
}

TEST(greeting, comes_out_as_it_went_in_and_is_little_endian) {
  const auto packed = sample().pack();
  EXPECT_EQ(packed.size(), 28u);
  EXPECT_EQ(packed[6], std::byte{0x34});
  EXPECT_EQ(packed[8], std::byte{0x78});
  EXPECT_EQ(packed[5], std::byte{0x05});
  const auto said = greeting::unpack(packed);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->receive_depth, 0x1234);
  EXPECT_EQ(said->receive_size, 0x12345678u);
  EXPECT_EQ(said->features, sample().features);
}

TEST(greeting, tells_each_feature_by_a_bit_of_its_own) {
  auto packed = sample().pack();
  for (unsigned bits = 0; bits < 8; ++bits) {
    packed[5] = static_cast<std::byte>(bits);
    const native_features expected{
        .atomics = (bits & 1) != 0, .immediate = (bits & 2) != 0, .large_frames = (bits & 4) != 0};
    EXPECT_EQ(greeting::unpack(packed)->features, expected);
    greeting again = sample();
    again.features = expected;
    EXPECT_EQ(again.pack(), packed);
  }
}

TEST(greeting, cut_at_any_byte_is_none) {
  const auto packed = sample().pack();
  for (std::size_t size = 0; size < packed.size(); ++size) {
    EXPECT_FALSE(greeting::unpack(std::span(packed).first(size))) << size;
  }
}

TEST(greeting, with_another_name_or_version_is_none) {
  for (std::size_t i = 0; i < 5; ++i) {
    auto packed = sample().pack();
    packed[i] ^= std::byte{0x20};
    EXPECT_FALSE(greeting::unpack(packed)) << i;
  }
}

TEST(greeting, that_says_something_impossible_is_none) {
  greeting deaf = sample();
  deaf.receive_depth = 0;
  EXPECT_FALSE(greeting::unpack(deaf.pack()));
  greeting huge = sample();
  huge.receive_size = greeting::largest_receive_size + 1;
  EXPECT_FALSE(greeting::unpack(huge.pack()));
  huge.receive_size = greeting::largest_receive_size;
  EXPECT_TRUE(greeting::unpack(huge.pack()));
}

TEST(greeting, leaves_what_may_come_later_to_later_versions) {
  auto packed = sample().pack();
  std::fill(packed.begin() + 12, packed.end(), std::byte{0xFF});
  packed[5] |= std::byte{0xF8};
  ASSERT_TRUE(greeting::unpack(packed));
  EXPECT_EQ(greeting::unpack(packed)->features, sample().features);
}

TEST(greeting_frame, has_room_for_the_users_bytes_and_not_for_more) {
  const std::string most(max_private_data, 'x');
  connection_options options;
  options.private_data = std::as_bytes(std::span(most));
  EXPECT_EQ(greeting_frame(options, {}).data().size(), greeting::bytes + most.size());
  EXPECT_TRUE(std::ranges::equal(greeting_frame(options, {}).data().last(most.size()), options.private_data));
  const std::string more(max_private_data + 1, 'x');
  options.private_data = std::as_bytes(std::span(more));
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(greeting_frame(options, {})); }), errc::invalid_argument);
}

TEST(trailer, comes_out_as_it_went_in_behind_any_payload) {
  for (const std::size_t payload : {0u, 1u, 100u}) {
    trailer end;
    end.credits = 0x89ABCDEF;
    std::vector<std::byte> message(payload);
    const auto packed = end.pack();
    EXPECT_EQ(packed[4], std::byte{0xEF});
    message.insert(message.end(), packed.begin(), packed.end());
    const auto said = trailer::unpack(message);
    ASSERT_TRUE(said);
    EXPECT_EQ(said->kind, message_kind::data);
    EXPECT_EQ(said->credits, 0x89ABCDEF);
  }
}

TEST(trailer, cut_at_any_byte_is_none) {
  const auto packed = trailer().pack();
  for (std::size_t size = 0; size < packed.size(); ++size) {
    EXPECT_FALSE(trailer::unpack(std::span(packed).first(size))) << size;
  }
}

TEST(trailer, of_a_kind_that_nobody_knows_is_none) {
  for (unsigned kind = 0; kind < 256; ++kind) {
    auto packed = trailer().pack();
    packed[0] = static_cast<std::byte>(kind);
    EXPECT_EQ(trailer::unpack(packed).has_value(), kind >= 1 && kind <= 3) << kind;
  }
}

TEST(trailer, of_a_control_message_has_no_payload_before_it) {
  for (const message_kind kind : {message_kind::credits, message_kind::close}) {
    trailer end;
    end.kind = kind;
    const auto packed = end.pack();
    EXPECT_TRUE(trailer::unpack(packed));
    std::array<std::byte, trailer::bytes + 1> longer{};
    std::copy(packed.begin(), packed.end(), longer.begin() + 1);
    EXPECT_FALSE(trailer::unpack(longer));
  }
}

}  // namespace
}  // namespace weft::net
