// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>

#include "kit/temporary_directory.hpp"
#include "kit/test.hpp"
#include "kit/thrown.hpp"
#include <copy/failure.hpp>
#include <copy/file.hpp>
#include <copy/protocol.hpp>

namespace copy {
namespace {

std::vector<message> one_of_each() {
  ready_message ready;
  for (std::uint32_t key = 1; key <= most_slots; ++key) {
    ready.slots.emplace_back(key, key * 4096, most_chunk_bytes, weft::mr::usage::write_dst);
  }
  digest sha{};
  sha[0] = std::byte{0xff};
  return {put_message{.size = 0x0102030405060708, .name = "a name"},
          get_message{.name = "another"},
          offer_message{.size = 7},
          ready,
          chunk_message{.index = 1u << 31},
          taken_message{.index = 42, .slot = {}},
          taken_message{.index = 43, .slot = ready.slots.front()},
          end_message{.sha = sha},
          stored_message{},
          failed_message{.text = "no room"}};
}

std::vector<std::byte> bytes_of(const message& what) {
  const auto packed = pack(what);
  return {packed.bytes().begin(), packed.bytes().end()};
}

std::error_code error_of(std::span<const std::byte> bytes) {
  return weft::test::code_thrown_by([bytes] { static_cast<void>(unpack(bytes)); });
}

TEST(copy_protocol, every_message_arrives_as_it_was_sent) {
  for (const message& sent : one_of_each()) {
    const message received = unpack(bytes_of(sent));
    EXPECT_EQ(received.index(), sent.index());
    EXPECT_EQ(bytes_of(received), bytes_of(sent)) << name_of(sent);
  }
}

// Of a region with one place, whose key is a small number.
constexpr std::ptrdiff_t slot_bytes = 26;

TEST(copy_protocol, numbers_are_little_endian_behind_four_bytes_of_kind) {
  const auto packed = bytes_of(put_message{.size = 0x0102030405060708, .name = "n"});
  const std::vector<int> expected = {1, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 'n'};
  ASSERT_EQ(packed.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(static_cast<int>(packed[i]), expected[i]) << i;
}

TEST(copy_protocol, a_message_cut_at_any_byte_is_a_clean_error_or_has_a_shorter_text_or_fewer_slots) {
  for (const message& whole : one_of_each()) {
    const auto packed = bytes_of(whole);
    const bool has_text = std::holds_alternative<put_message>(whole) || std::holds_alternative<get_message>(whole) ||
                          std::holds_alternative<failed_message>(whole);
    for (std::size_t cut = 0; cut < packed.size(); ++cut) {
      const bool in_a_slot =
          std::holds_alternative<ready_message>(whole) && cut > 4 && (cut - 4) % std::size_t{slot_bytes} == 0;
      const bool before_a_slot = std::holds_alternative<taken_message>(whole) && cut == 12;
      const std::size_t fixed = std::holds_alternative<put_message>(whole) ? 12 : 4;
      const bool still_valid = in_a_slot || before_a_slot || (has_text && cut >= fixed);
      EXPECT_EQ(error_of(std::span(packed).first(cut)), still_valid ? std::error_code() : weft::errc::malformed)
          << name_of(whole) << " cut at " << cut;
    }
  }
}

TEST(copy_protocol, unknown_kinds_and_surplus_bytes_are_malformed) {
  for (const unsigned kind : {0u, 10u, 255u, 256u, 1u << 24}) {
    std::vector<std::byte> bytes(4);
    for (unsigned i = 0; i < 4; ++i) bytes[i] = static_cast<std::byte>(kind >> 8 * i);
    EXPECT_EQ(error_of(bytes), weft::errc::malformed) << kind;
  }
  for (const message& whole : {message(offer_message{}), message(stored_message{}), message(end_message{})}) {
    std::vector<std::byte> bytes = bytes_of(whole);
    bytes.push_back(std::byte{0});
    EXPECT_EQ(error_of(bytes), weft::errc::malformed) << name_of(whole);
  }
}

TEST(copy_protocol, more_slots_than_possible_are_malformed) {
  std::vector<std::byte> bytes = bytes_of(one_of_each()[3]);
  const std::vector<std::byte> one_more(bytes.end() - slot_bytes, bytes.end());
  bytes.insert(bytes.end(), one_more.begin(), one_more.end());
  EXPECT_EQ(error_of(bytes), weft::errc::malformed);
}

TEST(copy_protocol, a_peers_words_cannot_play_with_the_terminal) {
  const message said = unpack(bytes_of(failed_message{.text = "\x1b[2J\r\nfine\x7f"}));
  EXPECT_EQ(std::get<failed_message>(said).text, "?[2J??fine?");
}

TEST(printable, keeps_what_a_terminal_only_shows) {
  for (const std::string word : {"", "plain", "na\xc3\xafve", "\xc2\xa0", "\xe2\x82\xac", "\xf0\x9f\x90\x9f"}) {
    EXPECT_EQ(common::printable(word), word);
    EXPECT_FALSE(common::has_control(word));
  }
  EXPECT_EQ(common::printable("caf\xe9"), "caf?");
  EXPECT_FALSE(common::has_control("caf\xe9"));
}

// U+009B begins a command where a terminal knows its one-byte form.
TEST(printable, shows_control_characters_of_one_byte_and_of_two) {
  for (const std::string word : {"\x1b[2J", "\x7f", "\xc2\x9b", "\xc2\x80"}) {
    EXPECT_EQ(common::printable(word).find_first_not_of("?[2J"), std::string::npos) << word;
    EXPECT_TRUE(common::has_control(word));
  }
  EXPECT_EQ(common::printable("\x9b\xc2"), "??");
}

TEST(copy_protocol, texts_that_are_too_long_are_cut_to_what_fits) {
  const message said = unpack(bytes_of(failed_message{.text = std::string(5000, 'x')}));
  EXPECT_EQ(std::get<failed_message>(said).text, std::string(longest_text_bytes, 'x'));
}

TEST(copy_protocol, chunks_cover_a_file_exactly) {
  for (const std::uint64_t size : {std::uint64_t{0}, std::uint64_t{1}, most_chunk_bytes - 1, most_chunk_bytes,
                                   most_chunk_bytes + 1, 7 * most_chunk_bytes, UINT64_MAX}) {
    const std::uint64_t chunks = chunks_of(size);
    if (chunks == 0) {
      EXPECT_EQ(size, 0u);
      continue;
    }
    const std::uint64_t last = bytes_of_chunk(size, chunks - 1);
    EXPECT_GT(last, 0u);
    EXPECT_LE(last, chunk_bytes_of(size));
    EXPECT_EQ((chunks - 1) * most_chunk_bytes + last, size);
  }
}

TEST(copy_file, only_names_without_a_way_out_are_plain) {
  for (const std::string name : {"a", "a.b", "with space", "-", "~", "\xc3\xbc"}) {
    EXPECT_NO_THROW(check_plain_name(name)) << name;
  }
  EXPECT_NO_THROW(check_plain_name(std::string(255, 'x')));
  for (const std::string& name : {std::string(), std::string("."), std::string(".."), std::string(".a"),
                                  std::string("a/b"), std::string("/"), std::string("/etc/passwd"), std::string("a/"),
                                  std::string("a\0b", 3), std::string("a\nb"), std::string(256, 'x')}) {
    EXPECT_THROW(check_plain_name(name), failure) << name;
  }
}

TEST(copy_file, a_part_that_is_dropped_leaves_nothing_and_one_that_is_committed_only_the_file) {
  const weft::test::temporary_directory there;
  const directory place(there.path());
  const auto bytes = std::as_bytes(std::span("0123"));
  {
    part_file dropped(place, "a");
    dropped.write(bytes);
    EXPECT_EQ(there.names().size(), 1u);
    EXPECT_FALSE(there.has("a"));
  }
  EXPECT_TRUE(there.names().empty());
  {
    part_file kept(place, "a");
    kept.write(bytes);
    part_file moved(std::move(kept));
    moved.commit(true);
  }
  EXPECT_EQ(there.names(), std::vector<std::string>{"a"});
}

TEST(copy_file, a_source_ends_where_it_ended_when_it_was_opened) {
  const weft::test::temporary_directory there;
  std::ofstream(there.path() + "/a") << "0123456789";
  source_file source(there.path() + "/a");
  ASSERT_EQ(source.size(), 10u);
  std::filesystem::resize_file(there.path() + "/a", 4);
  std::vector<std::byte> bytes(10);
  EXPECT_THROW(source.read(bytes), failure);
  EXPECT_THROW(source.check_unchanged(), failure);
}

}  // namespace
}  // namespace copy
