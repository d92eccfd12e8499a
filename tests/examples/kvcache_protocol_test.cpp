// SPDX-License-Identifier: Apache-2.0
#include "kit/test.hpp"
#include "kit/thrown.hpp"
#include <kvcache/contents.hpp>
#include <kvcache/protocol.hpp>

namespace kvcache {
namespace {

weft::mr::remote_region some_pages() { return {7, 4096, 65536, weft::mr::usage::write_dst}; }

std::vector<message> one_of_each() {
  return {want_message{.sequence = 0x0102030405060708, .of = {.pages = 9, .layers = 3, .block_bytes = 4096}},
          lent_message{.sequence = 4, .time = std::chrono::milliseconds(5), .pages = some_pages()},
          layer_message{.number = 1u << 31},
          accepted_message{.sequence = 42},
          evicted_message{.sequence = 5, .text = "needed"},
          refused_message{.sequence = 6, .text = "no room"},
          dropped_message{.sequence = UINT64_MAX}};
}

std::vector<std::byte> bytes_of(const message& what) {
  const auto packed = pack(what);
  return {packed.bytes().begin(), packed.bytes().end()};
}

std::error_code error_of(std::span<const std::byte> bytes) {
  return weft::test::code_thrown_by([bytes] { static_cast<void>(unpack(bytes)); });
}

std::error_code error_of(const message& what) { return error_of(bytes_of(what)); }
std::error_code error_of(const shape& what) { return error_of(want_message{.sequence = 1, .of = what}); }

bool has_text(const message& what) {
  return std::holds_alternative<evicted_message>(what) || std::holds_alternative<refused_message>(what);
}

TEST(kvcache_protocol, every_message_arrives_as_it_was_sent) {
  for (const message& sent : one_of_each()) {
    const message received = unpack(bytes_of(sent));
    EXPECT_EQ(received.index(), sent.index());
    EXPECT_EQ(bytes_of(received), bytes_of(sent)) << name_of(sent);
  }
}

TEST(kvcache_protocol, numbers_are_little_endian_behind_four_bytes_of_kind) {
  const auto packed = bytes_of(accepted_message{.sequence = 0x0102030405060708});
  const std::vector<int> expected = {4, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1};
  ASSERT_EQ(packed.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(static_cast<int>(packed[i]), expected[i]) << i;
}

TEST(kvcache_protocol, a_message_cut_at_any_byte_is_a_clean_error_or_has_a_shorter_text) {
  for (const message& whole : one_of_each()) {
    const auto packed = bytes_of(whole);
    for (std::size_t cut = 0; cut < packed.size(); ++cut) {
      const bool still_valid = has_text(whole) && cut >= 12;
      EXPECT_EQ(error_of(std::span(packed).first(cut)), still_valid ? std::error_code() : weft::errc::malformed)
          << name_of(whole) << " cut at " << cut;
    }
  }
}

TEST(kvcache_protocol, unknown_kinds_and_surplus_bytes_are_malformed) {
  for (const unsigned kind : {0u, 8u, 255u, 256u, 1u << 24}) {
    std::vector<std::byte> bytes(4);
    for (unsigned i = 0; i < 4; ++i) bytes[i] = static_cast<std::byte>(kind >> 8 * i);
    EXPECT_EQ(error_of(bytes), weft::errc::malformed) << kind;
  }
  for (const message& whole : one_of_each()) {
    if (has_text(whole)) continue;
    auto bytes = bytes_of(whole);
    bytes.push_back(std::byte{0});
    EXPECT_EQ(error_of(bytes), weft::errc::malformed) << name_of(whole);
  }
}

TEST(kvcache_protocol, shapes_out_of_range_are_malformed) {
  constexpr shape good{.pages = most_pages, .layers = most_layers, .block_bytes = most_block_bytes};
  EXPECT_FALSE(error_of(good));
  EXPECT_EQ(good.bytes() / good.page_bytes(), good.pages);  // does not overflow
  const auto expect_malformed = [=](auto part, std::uint64_t most, std::uint64_t largest) {
    for (const std::uint64_t value : {std::uint64_t{0}, most + 1, largest}) {
      shape bad = good;
      bad.*part = static_cast<std::remove_reference_t<decltype(bad.*part)>>(value);
      EXPECT_EQ(error_of(bad), weft::errc::malformed) << value;
    }
  };
  expect_malformed(&shape::pages, most_pages, UINT32_MAX);
  expect_malformed(&shape::layers, most_layers, UINT32_MAX);
  expect_malformed(&shape::block_bytes, most_block_bytes, UINT64_MAX);
}

TEST(kvcache_protocol, a_loan_lasts_a_millisecond_to_a_day) {
  for (const auto time : {std::chrono::milliseconds(1), longest_loan})
    EXPECT_FALSE(error_of(lent_message{.sequence = 1, .time = time, .pages = some_pages()}));
  for (const auto time : {std::chrono::milliseconds(0), longest_loan + std::chrono::milliseconds(1),
                          std::chrono::milliseconds(-1), std::chrono::milliseconds::max()}) {
    const lent_message lent{.sequence = 1, .time = time, .pages = some_pages()};
    EXPECT_EQ(error_of(lent), weft::errc::malformed) << time.count();
  }
}

TEST(kvcache_protocol, a_peers_words_cannot_play_with_the_terminal) {
  const message said = unpack(bytes_of(evicted_message{.sequence = 1, .text = "\x1b[2J\r\nfine\x7f"}));
  EXPECT_EQ(std::get<evicted_message>(said).text, "?[2J??fine?");
}

TEST(kvcache_protocol, texts_that_are_too_long_are_cut_to_what_fits) {
  const message said = unpack(bytes_of(refused_message{.sequence = 1, .text = std::string(5000, 'x')}));
  EXPECT_EQ(std::get<refused_message>(said).text, std::string(longest_text_bytes, 'x'));
}

TEST(kvcache_contents, of_a_block_are_found_right_and_any_wrong_byte_of_it_at_its_word) {
  for (const std::size_t size : {std::size_t{8}, std::size_t{4096}, std::size_t{4104}, std::size_t{12'000}}) {
    std::vector<std::byte> block(size);
    const block_name name{.sequence = 3, .layer = 1, .page = 7};
    fill_block(block, name);
    EXPECT_FALSE(first_wrong(block, name)) << size;
    for (std::size_t at = 0; at < size; at += 61) {
      block[at] ^= std::byte{1};
      EXPECT_EQ(first_wrong(block, name), at / word_bytes * word_bytes) << size;
      block[at] ^= std::byte{1};
    }
  }
}

TEST(kvcache_contents, of_another_block_are_wrong_from_the_first_word_on) {
  constexpr block_name name{.sequence = 3, .layer = 1, .page = 7};
  for (const block_name other : {block_name{2, 1, 7}, block_name{3, 0, 7}, block_name{3, 1, 6}, block_name{3, 7, 1},
                                 block_name{0, 0, 0}, block_name{7, 1, 3}}) {
    std::vector<std::byte> block(4096);
    fill_block(block, other);
    EXPECT_EQ(first_wrong(block, name), 0u);
  }
}

TEST(kvcache_contents, that_are_torn_are_wrong_where_they_are_torn) {
  constexpr block_name now{.sequence = 3, .layer = 1, .page = 7};
  constexpr block_name before{.sequence = 2, .layer = 1, .page = 7};
  std::vector<std::byte> block(8192);
  std::vector<std::byte> old(8192);
  fill_block(block, now);
  fill_block(old, before);
  std::copy(old.begin() + 5000, old.end(), block.begin() + 5000);
  EXPECT_EQ(first_wrong(block, now), 5000u);
}

}  // namespace
}  // namespace kvcache
