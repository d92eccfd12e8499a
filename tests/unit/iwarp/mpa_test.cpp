// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/mpa.hpp>

#include "iwarp/support.hpp"

namespace weft::net::iwarp::mpa {
namespace {

bytes a_request(std::size_t private_bytes = 10) {
  const bytes user = text(std::string(private_bytes, 'x'));
  frame request{.crc = true, .revision = 2, .private_data = user};
  request.enhanced = enhanced_data{.ird = 16, .ord = 8, .peer_to_peer = true, .rtr_write = true, .rtr_read = true};
  return encoded(request);
}

TEST(mpa, a_request_has_the_bytes_of_the_rfcs) {
  const bytes frame = a_request(1);
  const bytes key = text("MPA ID Req Frame");
  ASSERT_EQ(frame.size(), 25U);
  EXPECT_TRUE(std::ranges::equal(std::span(frame).first(16), key));
  const unsigned char rest[] = {0x50, 2, 0, 5, 0x80, 16, 0xC0, 8, 'x'};
  EXPECT_TRUE(std::ranges::equal(std::span(frame).subspan(16), std::as_bytes(std::span(rest))));
}

TEST(mpa, a_web_browser_is_recognised_at_its_first_byte_and_quoted) {
  EXPECT_EQ(parse_frame(text("G"), frame_kind::request).status, parse_status::malformed);
  const parsed_frame parsed = parse_frame(text("GET / HTTP/1.1\r\n"), frame_kind::request);
  ASSERT_EQ(parsed.status, parse_status::malformed);
  EXPECT_EQ(parsed.error.view(), "the peer does not speak iWARP: it sent \"GET / HT...\"");
}

TEST(mpa, what_cannot_be_printed_is_escaped) {
  const bytes garbage{std::byte{0x16}, std::byte{'"'}, std::byte{0xFF}};
  EXPECT_EQ(parse_frame(garbage, frame_kind::reply).error.view(),
            "the peer does not speak iWARP: it sent \"\\x16\\x22\\xff\"");
}

TEST(mpa, every_wrong_byte_of_the_key_is_noticed_at_once) {
  for (std::size_t at = 0; at < 16; ++at) {
    bytes frame = a_request();
    frame[at] ^= std::byte{0x20};
    EXPECT_EQ(parse_frame(std::span(frame).first(at + 1), frame_kind::request).status, parse_status::malformed) << at;
    EXPECT_NE(parse_frame(std::span(frame).first(at), frame_kind::request).status, parse_status::malformed) << at;
  }
}

TEST(mpa, two_initiators_are_told_so) {
  const bytes wire = a_request();
  const parsed_frame parsed = parse_frame(std::span(wire).first(10), frame_kind::reply);
  ASSERT_EQ(parsed.status, parse_status::malformed);
  EXPECT_NE(parsed.error.view().find("both sides initiate"), std::string_view::npos);
}

TEST(mpa, a_reply_to_nothing_is_refused) {
  const bytes reply = encoded({.kind = frame_kind::reply, .private_data = {}});
  EXPECT_EQ(parse_frame(reply, frame_kind::request).status, parse_status::malformed);
}

TEST(mpa, only_revisions_1_and_2_are_spoken) {
  for (const int revision : {0, 3, 255}) {
    bytes frame = a_request();
    frame[17] = static_cast<std::byte>(revision);
    EXPECT_EQ(parse_frame(std::span(frame).first(18), frame_kind::request).status, parse_status::malformed) << revision;
  }
}

TEST(mpa, more_private_data_than_512_bytes_is_refused_before_it_comes) {
  bytes frame = a_request(508);
  EXPECT_EQ(parse_frame(frame, frame_kind::request).status, parse_status::complete);
  frame[19] = std::byte{1};
  EXPECT_EQ(parse_frame(std::span(frame).first(20), frame_kind::request).status, parse_status::malformed);
}

TEST(mpa, more_private_data_than_512_bytes_is_not_encoded) {
  bytes out(max_frame_bytes);
  const bytes user(509);
  frame request{.private_data = user};
  EXPECT_EQ(encode_frame(request, out), 20U + 509U);
  request.enhanced = enhanced_data{};
  EXPECT_EQ(encode_frame(request, out), 0U);
}

TEST(mpa, an_enhanced_frame_without_room_for_depths_is_refused) {
  bytes frame = a_request();
  frame[19] = std::byte{3};
  EXPECT_EQ(parse_frame(frame, frame_kind::request).status, parse_status::malformed);
}

TEST(mpa, reserved_bits_are_ignored) {
  bytes frame = a_request();
  frame[16] |= std::byte{0x2F};  // R means nothing in a request
  const mpa::frame heard = parsed(frame, frame_kind::request);
  EXPECT_FALSE(heard.rejected);
  EXPECT_FALSE(heard.markers);
  EXPECT_TRUE(heard.enhanced);
}

TEST(mpa, revision_1_knows_no_enhanced_data) {
  bytes frame = a_request();
  frame[17] = std::byte{1};
  const mpa::frame heard = parsed(frame, frame_kind::request);
  EXPECT_FALSE(heard.enhanced);
  EXPECT_EQ(heard.private_data.size(), 14U);
}

TEST(mpa, fpdus_are_padded_to_words) {
  static_assert(fpdu_bytes(14) == 20 && pad_bytes(14) == 0);
  static_assert(fpdu_bytes(42) == 48 && pad_bytes(15) == 3 && pad_bytes(16) == 2 && pad_bytes(17) == 1);
  static_assert(max_fpdu_bytes % 4 == 0);
  for (std::size_t ulpdu = 1; ulpdu < 70; ++ulpdu) {
    bytes out(fpdu_bytes(ulpdu), std::byte{0xAA});
    EXPECT_EQ(encode_fpdu(bytes(ulpdu, std::byte{1}), false, out), out.size());
    EXPECT_EQ(out.size() % 4, 0U);
    EXPECT_TRUE(std::ranges::all_of(std::span(out).subspan(2 + ulpdu), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(mpa, mulpdu_fits_a_segment) {
  static_assert(mulpdu(1460) == 1454);
  static_assert(mulpdu(1463) == 1454 && fpdu_bytes(mulpdu(1463)) <= 1463);
  static_assert(mulpdu(100) == 128);
  static_assert(mulpdu(1 << 20) == 64768);
  for (std::size_t emss = 140; emss < 2000; ++emss) ASSERT_LE(fpdu_bytes(mulpdu(emss)), emss);
}

}  // namespace
}  // namespace weft::net::iwarp::mpa
