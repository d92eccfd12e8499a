// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/native_protocol.hpp>

#include "net/raw_peer.hpp"
#include "runtime/support.hpp"

namespace weft::net {
namespace {

using test::trailer_bytes;

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
  EXPECT_EQ(said->landing, landing_place());
}

TEST(greeting, tells_where_to_ask_for_signs_of_life) {
  greeting self = sample();
  self.landing = {.key = 0x01020304, .address = 0x1122334455667788};
  const auto packed = self.pack();
  EXPECT_EQ(packed[16], std::byte{0x04});
  EXPECT_EQ(packed[20], std::byte{0x88});
  EXPECT_EQ(packed[27], std::byte{0x11});
  const auto said = greeting::unpack(packed);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->landing, self.landing);
}

TEST(greeting, tells_each_feature_by_a_bit_of_its_own) {
  auto packed = sample().pack();
  for (unsigned bits = 0; bits < 128; ++bits) {
    packed[5] = static_cast<std::byte>(bits);
    const native_features expected{.atomics = (bits & 1) != 0,
                                   .immediate = (bits & 2) != 0,
                                   .large_frames = (bits & 4) != 0,
                                   .rails = (bits & 32) != 0,
                                   .resumes = (bits & 64) != 0};
    const auto said = greeting::unpack(packed);
    EXPECT_EQ(said->features, expected);
    EXPECT_EQ(said->listens_first, (bits & 8) != 0);
    EXPECT_EQ(said->answers_heartbeats, (bits & 16) != 0);
    greeting again = sample();
    again.features = expected;
    again.listens_first = said->listens_first;
    again.answers_heartbeats = said->answers_heartbeats;
    EXPECT_EQ(again.pack(), packed);
  }
}

TEST(greeting, tells_more_features_in_a_byte_of_their_own) {
  for (unsigned bits = 0; bits < 8; ++bits) {
    greeting self = sample();
    self.features.write_notices = (bits & 1) != 0;
    self.features.persistent_flush = (bits & 2) != 0;
    self.features.atomic_write = (bits & 4) != 0;
    const auto packed = self.pack();
    EXPECT_EQ(packed[15], static_cast<std::byte>(bits));
    EXPECT_EQ(greeting::unpack(packed)->features, self.features);
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
    packed[13] = packed[4];  // the oldest version that it speaks
    EXPECT_FALSE(greeting::unpack(packed)) << i;
  }
}

// As each release has sent it: a row for each, at its end, that stays.
TEST(greeting, of_every_release_is_understood) {
  using said = std::array<unsigned char, greeting::bytes>;
  const struct {
    said bytes;
    native_features features;
    bool answers_heartbeats;
  } releases[] = {
      // 0.1 before it had features
      {{'w', 'e', 'f', 't', 1, 0, 16, 0, 0, 16}, {}, false},
      // and with atomics, immediate data and large frames
      {{'w', 'e', 'f', 't', 1, 7, 16, 0, 0, 16}, {true, true, true}, false},
      // and a landing place
      {{'w', 'e', 'f', 't', 1, 0, 16, 0, 0, 16, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 8}, {}, false},
      // and heartbeats
      {{'w', 'e', 'f', 't', 1, 23, 16, 0, 0, 16}, {true, true, true}, true},
      // and the oldest version that it speaks
      {{'w', 'e', 'f', 't', 1, 23, 16, 0, 0, 16, 0, 0, 0, 1}, {true, true, true}, true},
  };
  for (const auto& [bytes, features, answers_heartbeats] : releases) {
    const auto understood = greeting::unpack(std::as_bytes(std::span(bytes)));
    ASSERT_TRUE(understood);
    EXPECT_EQ(understood->receive_depth, 16);
    EXPECT_EQ(understood->receive_size, 4096U);
    EXPECT_EQ(understood->features, features);
    EXPECT_EQ(understood->answers_heartbeats, answers_heartbeats);
    EXPECT_FALSE(greeting::other_versions(std::as_bytes(std::span(bytes))));
  }
}

TEST(greeting, of_a_later_version_is_understood_if_it_speaks_ours_as_well) {
  auto packed = sample().pack();
  packed[4] = std::byte{9};
  packed[13] = std::byte{1};
  ASSERT_TRUE(greeting::unpack(packed));
  EXPECT_EQ(greeting::unpack(packed)->receive_depth, sample().receive_depth);
  EXPECT_FALSE(greeting::other_versions(packed));
}

TEST(greeting, of_other_versions_alone_is_told_from_a_stranger) {
  auto packed = sample().pack();
  packed[4] = std::byte{9};
  for (const std::uint8_t oldest : {std::uint8_t{2}, std::uint8_t{9}}) {
    packed[13] = std::byte{oldest};
    EXPECT_FALSE(greeting::unpack(packed));
    EXPECT_EQ(greeting::other_versions(packed), (version_range{oldest, 9}));
  }
  packed[13] = std::byte{0};
  EXPECT_EQ(greeting::other_versions(packed), (version_range{9, 9}));
  EXPECT_FALSE(greeting::other_versions(std::span(packed).first(13)));
  packed[0] = std::byte{'W'};
  EXPECT_FALSE(greeting::other_versions(packed));
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
  std::fill(packed.begin() + 13, packed.end(), std::byte{0xFF});
  packed[5] |= std::byte{0x10};
  packed[15] = std::byte{0xF8};
  ASSERT_TRUE(greeting::unpack(packed));
  EXPECT_EQ(greeting::unpack(packed)->features, sample().features);
}

TEST(greeting_frame, has_room_for_the_users_bytes_and_not_for_more) {
  const std::string most(max_private_data, 'x');
  connection_options options{.private_data = std::as_bytes(std::span(most))};
  EXPECT_EQ(greeting_frame(options, {}).data().size(), greeting::bytes + most.size());
  EXPECT_TRUE(std::ranges::equal(greeting_frame(options, {}).data().last(most.size()), options.private_data));
  const std::string more(max_private_data + 1, 'x');
  options.private_data = std::as_bytes(std::span(more));
  EXPECT_EQ(test::code_thrown_by([&] { static_cast<void>(greeting_frame(options, {})); }), errc::invalid_argument);
}

/// As it went in, whatever is before it.
void expect_to_come_out(const trailer& end) {
  const auto bytes = trailer_bytes(end);
  for (const std::size_t payload : {0u, 1u, 100u}) {
    std::vector<std::byte> message(payload);
    message.insert(message.end(), bytes.begin(), bytes.end());
    const auto said = trailer::unpack(message);
    ASSERT_TRUE(said);
    EXPECT_EQ(said->kind, end.kind);
    EXPECT_EQ(said->credits, end.credits);
    EXPECT_EQ(said->immediate, end.immediate);
    EXPECT_EQ(said->writes, end.writes);
    EXPECT_EQ(said->size(), bytes.size());
  }
}

TEST(trailer, comes_out_as_it_went_in_behind_any_payload) {
  const trailer end{.credits = 0x89ABCDEF};
  const auto bytes = trailer_bytes(end);
  EXPECT_EQ(bytes.size(), trailer::bytes);
  EXPECT_EQ(bytes[4], std::byte{0xEF});
  expect_to_come_out(end);
}

TEST(trailer, brings_immediate_data_along_behind_any_payload) {
  const trailer end{.kind = message_kind::data_with_immediate, .credits = 0x89ABCDEF, .immediate = 0x01234567};
  const auto bytes = trailer_bytes(end);
  EXPECT_EQ(bytes.size(), trailer::max_bytes);
  EXPECT_EQ(bytes[0], std::byte{0x67});
  EXPECT_EQ(bytes[8], std::byte{0xEF});
  expect_to_come_out(end);
}

TEST(trailer, tells_how_often_was_written_and_where) {
  const trailer end{.kind = message_kind::written,
                    .credits = 0x89ABCDEF,
                    .immediate = 0x01234567,
                    .writes = trailer::most_writes - 1};
  auto bytes = trailer_bytes(end);
  EXPECT_EQ(bytes.size(), trailer::max_bytes);
  EXPECT_EQ(bytes[4], std::byte{7});
  EXPECT_EQ(bytes[5], std::byte{0xFE});
  const auto said = trailer::unpack(bytes);
  ASSERT_TRUE(said);
  EXPECT_EQ(said->kind, message_kind::written);
  EXPECT_EQ(said->credits, 0x89ABCDEF);
  EXPECT_EQ(said->immediate, 0x01234567u);
  EXPECT_EQ(said->writes, trailer::most_writes - 1);
  std::fill_n(bytes.begin() + 5, 3, std::byte{0});  // not once
  EXPECT_FALSE(trailer::unpack(bytes));
}

TEST(trailer, cut_at_any_byte_is_none) {
  for (const message_kind kind : {message_kind::data, message_kind::data_with_immediate, message_kind::written}) {
    const trailer end{.kind = kind, .writes = kind == message_kind::written ? 1U : 0U};
    const auto bytes = trailer_bytes(end);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(trailer::unpack(std::span(bytes).last(size))) << size;
    }
  }
}

TEST(trailer, of_a_kind_that_nobody_knows_is_none) {
  for (unsigned kind = 0; kind < 256; ++kind) {
    auto bytes = trailer_bytes(trailer());
    bytes[0] = static_cast<std::byte>(kind);
    EXPECT_EQ(trailer::unpack(bytes).has_value(), (kind >= 1 && kind <= 3) || kind == 5 || kind == 6 || kind == 8)
        << kind;
    bytes.insert(bytes.begin(), trailer::immediate_bytes, std::byte{0});
    EXPECT_EQ(trailer::unpack(bytes).has_value(), kind == 1 || kind == 4 || kind == 6) << kind;
    bytes[trailer::immediate_bytes + 1] = std::byte{1};
    EXPECT_EQ(trailer::unpack(bytes).has_value(), kind == 1 || kind == 4 || kind == 6 || kind == 7) << kind;
  }
}

TEST(trailer, of_a_control_message_has_no_payload_before_it) {
  for (const message_kind kind :
       {message_kind::credits, message_kind::close, message_kind::heartbeat, message_kind::counted}) {
    const trailer end{.kind = kind};
    auto bytes = trailer_bytes(end);
    EXPECT_TRUE(trailer::unpack(bytes));
    bytes.insert(bytes.begin(), std::byte{0});
    EXPECT_FALSE(trailer::unpack(bytes));
  }
}

}  // namespace
}  // namespace weft::net
