// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/crc32c.hpp>

#include "iwarp/support.hpp"

namespace weft::net::iwarp {
namespace {

std::vector<std::byte> bytes_from(std::size_t count, int first, int step) {
  std::vector<std::byte> result;
  for (std::size_t i = 0; i < count; ++i, first += step) result.push_back(static_cast<std::byte>(first));
  return result;
}

TEST(crc32c, agrees_with_the_vectors_of_rfc_3720) {
  EXPECT_EQ(crc32c_of(bytes_from(32, 0, 0)), 0x8A9136AAU);
  EXPECT_EQ(crc32c_of(bytes_from(32, 0xFF, 0)), 0x62A8AB43U);
  EXPECT_EQ(crc32c_of(bytes_from(32, 0, 1)), 0x46DD794EU);
  EXPECT_EQ(crc32c_of(bytes_from(32, 31, -1)), 0x113FDB5CU);
}

// Figure 5: a Send of 24 zeros; the marker of four zeros in front of it is part of what is covered.
TEST(crc32c, agrees_with_the_annotated_fpdu_of_rfc_5044) {
  std::vector<std::byte> covered = bytes_from(4 + 2 + 42, 0, 0);
  covered[5] = std::byte{0x2A};
  covered[6] = std::byte{0x41};
  covered[7] = std::byte{0x43};
  covered[0x13] = std::byte{1};
  std::array<std::byte, 4> field;
  mpa::store_crc(field.data(), crc32c_of(covered));
  EXPECT_EQ(field, (std::array{std::byte{0x52}, std::byte{0x23}, std::byte{0x99}, std::byte{0x83}}));
  EXPECT_EQ(mpa::load_crc(field.data()), crc32c_of(covered));
}

TEST(crc32c, does_not_depend_on_how_the_bytes_are_cut) {
  const auto whole = bytes_from(300, 7, 3);
  for (std::size_t cut = 0; cut <= whole.size(); ++cut) {
    crc32c crc;
    crc.add(std::span(whole).first(cut));
    crc.add({});
    crc.add(std::span(whole).subspan(cut));
    ASSERT_EQ(crc.value(), crc32c_of(whole)) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace weft::net::iwarp
