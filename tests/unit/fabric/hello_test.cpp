// SPDX-License-Identifier: Apache-2.0
#include <weft/net/fabric/hello.hpp>

#include "kit/test.hpp"

namespace weft::net::fabric {
namespace {

using packed = std::array<std::byte, frame::max_bytes>;

frame some_hello() {
  frame hello{.kind = frame_kind::hello, .incoming_reads = 16, .outgoing_reads = 9, .token = 0x0123'4567'89AB'CDEF};
  const std::array address{std::byte{1}, std::byte{2}, std::byte{3}};
  const std::array data{std::byte{7}, std::byte{8}};
  EXPECT_TRUE(hello.set_address(address));
  EXPECT_TRUE(hello.set_private_data(data));
  hello.set_name("tcp;ofi_rxm");
  return hello;
}

frame_status unpack_whole(std::span<const std::byte> bytes, frame& out) {
  const frame_status status = unpack(bytes.first<frame::header_bytes>(), out);
  if (status == frame_status::good) unpack_rest(bytes.subspan(frame::header_bytes, rest_of(out)), out);
  return status;
}

TEST(fabric_hello, arrives_as_it_was_sent) {
  const frame said = some_hello();
  packed bytes;
  const std::size_t length = pack(said, bytes);
  frame heard;
  ASSERT_EQ(unpack_whole(bytes, heard), frame_status::good);
  EXPECT_EQ(length, frame::header_bytes + rest_of(heard));
  EXPECT_EQ(heard.token, said.token);
  EXPECT_EQ(heard.incoming_reads, 16);
  EXPECT_EQ(heard.outgoing_reads, 9);
  EXPECT_EQ(heard.name(), "tcp;ofi_rxm");
  EXPECT_TRUE(std::ranges::equal(heard.address(), said.address()));
  EXPECT_TRUE(std::ranges::equal(heard.private_data(), said.private_data()));
}

TEST(fabric_hello, of_a_stranger_is_seen_at_the_first_byte_that_differs) {
  packed bytes;
  pack(some_hello(), bytes);
  EXPECT_TRUE(may_be_ours({}));
  for (std::size_t have = 1; have <= 8; ++have) {
    EXPECT_TRUE(may_be_ours(std::span(bytes).first(have)));
    packed other = bytes;
    other[have - 1] ^= std::byte{1};
    EXPECT_FALSE(may_be_ours(std::span(other).first(have)));
  }
}

TEST(fabric_hello, of_another_version_says_which) {
  packed bytes;
  pack(some_hello(), bytes);
  bytes[8] = std::byte{9};
  frame heard;
  EXPECT_EQ(unpack_whole(bytes, heard), frame_status::other_version);
  EXPECT_EQ(heard.version, 9);
}

// Whatever the header says, what follows it fits the frame, and each frame that is taken means something.
TEST(fabric_hello, with_any_byte_of_its_header_changed_is_sound_or_refused) {
  packed bytes;
  pack(some_hello(), bytes);
  for (std::size_t at = 0; at != frame::header_bytes; ++at) {
    for (int value = 0; value != 256; ++value) {
      packed other = bytes;
      other[at] = static_cast<std::byte>(value);
      frame heard;
      if (unpack(std::span(other).first<frame::header_bytes>(), heard) != frame_status::good) continue;
      ASSERT_LE(frame::header_bytes + rest_of(heard), frame::max_bytes);
      unpack_rest(std::span(other).subspan(frame::header_bytes, rest_of(heard)), heard);
      packed again;
      EXPECT_EQ(pack(heard, again), frame::header_bytes + rest_of(heard));
    }
  }
}

TEST(fabric_hello, takes_no_more_than_fits) {
  frame hello;
  EXPECT_FALSE(hello.set_address(std::vector<std::byte>(frame::max_address_bytes + 1)));
  EXPECT_FALSE(hello.set_private_data(std::vector<std::byte>(frame::max_private_bytes + 1)));
  hello.set_name(std::string(100, 'x'));
  EXPECT_EQ(hello.name().size(), frame::max_name_bytes);
}

TEST(fabric_records, arrive_as_they_were_sent) {
  const control_record said{.kind = control_record::asks,
                            .reason = control_record::writing,
                            .messages = 0x8765'4321,
                            .key = 0xFEDC'BA98'7654'3210,
                            .address = 1ull << 63,
                            .length = 5};
  EXPECT_EQ(unpack(std::span<const std::byte, control_record::bytes>(pack(said))), said);
}

TEST(fabric_records, behind_a_message_keep_keys_of_64_bits) {
  const message_trailer said{.flags = message_trailer::invalidates,
                             .number = 0xFFFF'FFFF,
                             .key = 0xFEDC'BA98'7654'3210,
                             .value = 3,
                             .token = 0xFFFF'FFFF'0000'0001};
  std::array<std::byte, message_trailer::bytes> packed_trailer;
  pack(said, packed_trailer);
  EXPECT_EQ(unpack_trailer(packed_trailer), said);
}

}  // namespace
}  // namespace weft::net::fabric
