// SPDX-License-Identifier: Apache-2.0
#include "shm/support.hpp"

namespace weft::test {
namespace {

shm::frame full_frame() {
  shm::frame made = accept_frame();
  made.incoming_reads = 0x1234;
  made.outgoing_reads = 0xfffe;
  EXPECT_TRUE(made.set_private_data(bytes(shm::frame::max_private_bytes, std::byte{7})));
  return made;
}

TEST(shm_frames, come_out_as_they_were_packed) {
  shm::frame reject{.kind = shm::frame_kind::reject, .reason = shm::reject_reason::other_user};
  EXPECT_TRUE(reject.set_private_data(bytes_of("no")));
  for (const shm::frame& each : {hello_frame(), full_frame(), reject, shm::frame{.kind = shm::frame_kind::ready}}) {
    shm::frame back;
    EXPECT_EQ(shm::unpack(packed(each), back), shm::frame_status::good);
    EXPECT_EQ(back, each);
  }
}

TEST(shm_frames, have_their_numbers_in_little_endian) {
  const bytes hello = packed(full_frame());
  EXPECT_EQ(hello.size(), 76u);
  EXPECT_EQ(hello[8], std::byte{2});
  EXPECT_EQ(hello[9], std::byte{0});
  EXPECT_EQ(hello[12], std::byte{0x34});
  EXPECT_EQ(hello[13], std::byte{0x12});
  EXPECT_EQ(hello[18], std::byte{4});
}

TEST(shm_frames, take_no_more_private_data_than_fits) {
  shm::frame frame;
  EXPECT_FALSE(frame.set_private_data(bytes(shm::frame::max_private_bytes + 1)));
  EXPECT_EQ(frame.private_bytes, 0u);
}

TEST(shm_frames, that_are_cut_or_too_long_are_none) {
  bytes whole = packed(full_frame());
  shm::frame back;
  for (std::size_t length = 0; length < shm::frame::header_bytes; ++length) {
    EXPECT_NE(shm::unpack(std::span(whole).first(length), back), shm::frame_status::good) << length;
  }
  whole.push_back(std::byte{0});
  EXPECT_EQ(shm::unpack(whole, back), shm::frame_status::malformed);
}

TEST(shm_frames, with_a_ring_that_cannot_be_are_malformed) {
  shm::frame frame = hello_frame();
  shm::frame back;
  for (const std::uint32_t ring : {0U, 1U, 8192U, (256U << 10) + 1, 3U << 16, 32U << 20, 0xffffffffU}) {
    frame.ring_bytes = ring;
    EXPECT_EQ(shm::unpack(packed(frame), back), shm::frame_status::malformed) << ring;
  }
}

TEST(shm_frames, of_another_version_say_which_and_no_more) {
  shm::frame frame = hello_frame();
  frame.version = 0x0203;
  bytes packet = packed(frame);
  packet.resize(10);
  shm::frame back;
  EXPECT_EQ(shm::unpack(packet, back), shm::frame_status::other_version);
  EXPECT_EQ(back.version, 0x0203);
}

TEST(shm_frames, with_any_bit_wrong_are_read_as_something_else_or_not_at_all) {
  const shm::frame frame = full_frame();
  const bytes whole = packed(frame);
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    bytes wrong = whole;
    wrong[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    shm::frame back;
    if (shm::unpack(wrong, back) != shm::frame_status::good) continue;
    EXPECT_NE(back, frame) << bit;
  }
}

}  // namespace
}  // namespace weft::test
