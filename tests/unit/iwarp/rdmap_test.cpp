// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/ddp.hpp>

#include <initializer_list>
#include <set>

#include "iwarp/support.hpp"

namespace weft::net::iwarp {
namespace {

bytes hex(std::initializer_list<int> values) {
  bytes result;
  for (const int value : values) result.push_back(static_cast<std::byte>(value));
  return result;
}

TEST(ddp, a_tagged_header_has_the_bytes_of_the_rfc) {
  const tagged_header header{.opcode = opcode::read_response, .stag = 0x01020304, .offset = 0x1122334455667788};
  const bytes wire = hex({0xC1, 0x42, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88});
  EXPECT_EQ(encoded(header), wire);
  const tagged_header heard = parse_tagged(std::span(wire).first<tagged_header::bytes>());
  EXPECT_EQ(heard.opcode, opcode::read_response);
  EXPECT_EQ(encoded(heard), wire);
}

TEST(ddp, an_untagged_header_has_the_bytes_of_the_rfc) {
  const untagged_header header{.last = false,
                               .opcode = opcode::send_with_invalidate,
                               .invalidate_stag = 0xAABBCCDD,
                               .queue = 2,
                               .sequence = 3,
                               .offset = 0x40506070};
  const bytes wire = hex({0x01, 0x44, 0xAA, 0xBB, 0xCC, 0xDD, 0, 0, 0, 2, 0, 0, 0, 3, 0x40, 0x50, 0x60, 0x70});
  EXPECT_EQ(encoded(header), wire);
  EXPECT_EQ(encoded(parse_untagged(std::span(wire).first<untagged_header::bytes>())), wire);
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
  const read_request asked{.sink_stag = 1, .sink_offset = 2, .size = 3, .source_stag = 4, .source_offset = 5};
  const bytes wire = hex({0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5});
  EXPECT_EQ(encoded(asked), wire);
  EXPECT_EQ(encoded(parse_read_request(std::span(wire).first<read_request::bytes>())), wire);
}

TEST(rdmap, an_atomic_request_has_the_bytes_of_the_rfc) {
  const atomic_request swap{.operation = atomic_operation::compare_swap,
                            .id = 0x01020304,
                            .stag = 0x05060708,
                            .offset = 0x1112131415161718,
                            .operand = 0x2122232425262728,
                            .mask = 0x3132333435363738,
                            .compare = 0x4142434445464748,
                            .compare_mask = 0x5152535455565758};
  bytes wire = hex({0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8});
  for (int field = 1; field <= 5; ++field)
    for (int byte = 1; byte <= 8; ++byte) wire.push_back(static_cast<std::byte>(field << 4 | byte));
  EXPECT_EQ(encoded(swap), wire);
  for (std::size_t i = 0; i < 3; ++i) wire[i] = std::byte{0xFF};  // reserved: ignored
  wire[3] |= std::byte{0xF0};
  const atomic_request heard = parse_atomic_request(std::span(wire).first<atomic_request::bytes>());
  EXPECT_EQ(heard.operation, swap.operation);
  EXPECT_EQ(encoded(heard), encoded(swap));
}

TEST(rdmap, an_atomic_response_has_the_bytes_of_the_rfc) {
  const bytes wire = hex({1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88});
  EXPECT_EQ(encoded(atomic_response{.id = 0x01020304, .previous = 0x1122334455667788}), wire);
  EXPECT_EQ(encoded(parse_atomic_response(std::span(wire).first<atomic_response::bytes>())), wire);
}

/// The pseudocode of RFC 7306 section 5.1.1, bit by bit.
std::uint64_t masked_add(std::uint64_t value, std::uint64_t add, std::uint64_t mask) {
  std::uint64_t result = 0;
  unsigned carry = 0;
  for (unsigned bit = 0; bit < 64; ++bit) {
    const std::uint64_t location = std::uint64_t{1} << bit;
    const unsigned sum = carry + ((value & location) != 0) + ((add & location) != 0);
    if ((sum & 1) != 0) result |= location;
    carry = (sum & 2) != 0 && (mask & location) == 0 ? 1 : 0;
  }
  return result;
}

TEST(rdmap, fetch_add_adds_each_field_of_its_mask_by_itself) {
  const atomic_request plain{.operand = 2};
  EXPECT_EQ(apply(plain, ~std::uint64_t{0}), 1U);
  const atomic_request bytes{.operand = 0x0101010101010101, .mask = 0x8080808080808080};
  EXPECT_EQ(apply(bytes, 0xFF00FF7F80FFFEFF), 0x0001008081'00FF00U);
  std::mt19937_64 random(3);
  for (int round = 0; round < 20000; ++round) {
    const atomic_request any{.operand = random(), .mask = random() & random()};
    const std::uint64_t value = random();
    ASSERT_EQ(apply(any, value), masked_add(value, any.operand, any.mask)) << round;
  }
}

TEST(rdmap, compare_swap_compares_and_changes_the_bits_of_its_masks_only) {
  atomic_request swap{.operation = atomic_operation::compare_swap,
                      .operand = 0xAAAA,
                      .mask = atomic_request::every_bit,
                      .compare = 0x1234};
  EXPECT_EQ(apply(swap, 0x1234), 0xAAAAU);
  EXPECT_EQ(apply(swap, 0x1235), 0x1235U);
  swap.compare_mask = 0xFF00;
  EXPECT_EQ(apply(swap, 0x1235), 0xAAAAU);
  swap.mask = 0x00FF;
  EXPECT_EQ(apply(swap, 0x77771235), 0x777712AAU);
  EXPECT_EQ(apply(swap, 0x1335), 0x1335U);
}

terminate_message refused_read() {
  terminate_message message{
      .code = cause::read_bounds, .segment_bytes = 46, .segment_header_bytes = untagged_header::bytes};
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
  const terminate_message message{.code = cause::crc_mismatch};
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
