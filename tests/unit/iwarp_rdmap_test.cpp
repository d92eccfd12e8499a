// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/ddp.hpp>
#include <weft/net/iwarp/rdmap.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace weft::net::iwarp {
namespace {

std::vector<std::byte> hex(std::initializer_list<int> values) {
  std::vector<std::byte> result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

TEST(ddp, a_tagged_header_has_the_bytes_of_the_rfc) {
  std::array<std::byte, tagged_header::bytes> out;
  encode(tagged_header{.last = true, .opcode = opcode::read_response, .stag = 0x01020304, .offset = 0x1122334455667788},
         out);
  EXPECT_TRUE(std::ranges::equal(out, hex({0xC1, 0x42, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88})));
  const tagged_header parsed = parse_tagged(out);
  EXPECT_TRUE(parsed.last);
  EXPECT_EQ(parsed.opcode, opcode::read_response);
  EXPECT_EQ(parsed.stag, 0x01020304U);
  EXPECT_EQ(parsed.offset, 0x1122334455667788U);
}

TEST(ddp, an_untagged_header_has_the_bytes_of_the_rfc) {
  std::array<std::byte, untagged_header::bytes> out;
  encode(untagged_header{.last = false,
                         .opcode = opcode::send_with_invalidate,
                         .invalidate_stag = 0xAABBCCDD,
                         .queue = 2,
                         .sequence = 3,
                         .offset = 0x40506070},
         out);
  EXPECT_TRUE(std::ranges::equal(
      out, hex({0x01, 0x44, 0xAA, 0xBB, 0xCC, 0xDD, 0, 0, 0, 2, 0, 0, 0, 3, 0x40, 0x50, 0x60, 0x70})));
  const untagged_header parsed = parse_untagged(out);
  EXPECT_FALSE(parsed.last);
  EXPECT_EQ(parsed.invalidate_stag, 0xAABBCCDDU);
  EXPECT_EQ(parsed.queue, 2U);
  EXPECT_EQ(parsed.sequence, 3U);
  EXPECT_EQ(parsed.offset, 0x40506070U);
}

TEST(ddp, reserved_control_bits_are_ignored) {
  const auto bytes = hex({0xBD, 0x73});
  const control parsed = parse_control(std::span(bytes).first<control_bytes>());
  EXPECT_TRUE(parsed.tagged);
  EXPECT_FALSE(parsed.last);
  EXPECT_EQ(parsed.ddp_version, 1);
  EXPECT_EQ(parsed.rdmap_version, 1);
  EXPECT_EQ(parsed.opcode, opcode::send);
}

TEST(rdmap, a_read_request_survives_the_wire) {
  std::array<std::byte, read_request::bytes> out;
  encode(read_request{.sink_stag = 1, .sink_offset = 2, .size = 3, .source_stag = 4, .source_offset = 5}, out);
  EXPECT_TRUE(std::ranges::equal(
      out, hex({0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5})));
  const read_request parsed = parse_read_request(out);
  EXPECT_EQ(parsed.sink_stag, 1U);
  EXPECT_EQ(parsed.sink_offset, 2U);
  EXPECT_EQ(parsed.size, 3U);
  EXPECT_EQ(parsed.source_stag, 4U);
  EXPECT_EQ(parsed.source_offset, 5U);
}

terminate_message refused_read() {
  terminate_message message;
  message.code = cause::read_bounds;
  message.segment_bytes = 46;
  message.segment_header_bytes = untagged_header::bytes;
  encode(untagged_header{.opcode = opcode::read_request, .queue = 1, .sequence = 9}, message.segment_header);
  message.read = read_request{.sink_stag = 1, .sink_offset = 2, .size = 3, .source_stag = 4, .source_offset = 5};
  return message;
}

TEST(terminate, survives_the_wire) {
  std::array<std::byte, terminate_message::max_bytes> out;
  ASSERT_EQ(encode(refused_read(), out), out.size());
  EXPECT_TRUE(std::ranges::equal(std::span(out).first(6), hex({0x01, 0x01, 0xE0, 0, 0, 46})));
  const auto parsed = parse_terminate(out);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->code, cause::read_bounds);
  EXPECT_EQ(parsed->segment_bytes, 46);
  EXPECT_EQ(parsed->segment_header_bytes, untagged_header::bytes);
  EXPECT_EQ(parsed->segment_header, refused_read().segment_header);
  ASSERT_TRUE(parsed->read);
  EXPECT_EQ(parsed->read->source_offset, 5U);
  EXPECT_FALSE(parsed->reversed);
}

TEST(terminate, of_the_layer_below_carries_no_headers) {
  terminate_message message;
  message.code = cause::crc_mismatch;
  std::array<std::byte, terminate_message::max_bytes> out;
  ASSERT_EQ(encode(message, out), 4U);
  EXPECT_TRUE(std::ranges::equal(std::span(out).first(4), hex({0x20, 0x02, 0, 0})));
}

TEST(terminate, cut_at_any_byte_keeps_what_is_whole) {
  std::array<std::byte, terminate_message::max_bytes> out;
  const std::size_t length = encode(refused_read(), out);
  for (std::size_t cut = 0; cut < length; ++cut) {
    const auto parsed = parse_terminate(std::span(out).first(cut));
    ASSERT_EQ(parsed.has_value(), cut >= 4) << cut;
    if (!parsed) continue;
    EXPECT_EQ(parsed->code, cause::read_bounds);
    EXPECT_EQ(parsed->segment_header_bytes, cut >= 24 ? untagged_header::bytes : 0) << cut;
    EXPECT_FALSE(parsed->read);
  }
}

TEST(terminate, of_linux_siw_is_read_from_the_other_end) {
  // Layer 1, type 1, code 1 with M and D, all bit fields reversed.
  auto body = hex({0x11, 0x01, 0x03, 0, 0, 8, 0xC1, 0x40, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 9});
  auto parsed = parse_terminate(body);
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed->reversed);
  EXPECT_EQ(parsed->code, cause::tagged_bounds);
  EXPECT_EQ(parsed->segment_bytes, 8);
  EXPECT_EQ(parsed->segment_header_bytes, tagged_header::bytes);

  body[0] = std::byte{0x10};  // layer 0, type 1
  body[1] = std::byte{0x00};
  parsed = parse_terminate(body);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->code, cause::read_invalid_stag);
}

TEST(terminate, of_linux_siw_without_headers_is_recognised_by_its_cause) {
  const auto parsed = parse_terminate(hex({0x21, 0x05, 0, 0}));  // as written there is no layer 2 type 1
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed->reversed);
  EXPECT_EQ(parsed->code, cause::untagged_too_long);
}

TEST(terminate, every_cause_has_words_of_its_own) {
  const struct {
    int layer, type, first, last;
  } rows[] = {{0, 1, 0, 4},     {0, 1, 9, 9}, {0, 1, 255, 255}, {0, 2, 5, 9},
              {0, 2, 255, 255}, {1, 1, 0, 4}, {1, 2, 1, 6},     {2, 0, 1, 7}};
  std::set<std::string> all;
  std::size_t count = 0;
  for (const auto& row : rows)
    for (int code = row.first; code <= row.last; ++code, ++count) {
      const words text = describe(
          {static_cast<std::uint8_t>(row.layer), static_cast<std::uint8_t>(row.type), static_cast<std::uint8_t>(code)});
      EXPECT_EQ(text.view().find("unknown"), std::string_view::npos) << row.layer << row.type << code;
      all.emplace(text.view());
    }
  EXPECT_EQ(all.size(), count);
  EXPECT_EQ(describe({0, 0, 77}).view(), describe({0, 0, 0}).view());
  EXPECT_EQ(describe({3, 1, 0}).view(), "unknown cause (layer 3, type 1, code 0x00)");
}

}  // namespace
}  // namespace weft::net::iwarp
