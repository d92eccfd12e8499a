// SPDX-License-Identifier: Apache-2.0
// What kv is made of: its table, as its server writes it and as peers read it meanwhile, and its protocols.
#include <weft/weft.hpp>

#include <map>
#include <random>

#include "../unit/failing_calls.hpp"
#include "../unit/live_heap.hpp"
#include "kit/bytes.hpp"
#include "kit/failure.hpp"
#include "kit/settle.hpp"
#include "kit/test.hpp"
#include "kv_reader.hpp"
#include <kv/bench.hpp>
#include <kv/client.hpp>
#include <kv/clock.hpp>
#include <kv/protocol.hpp>
#include <kv/resp.hpp>
#include <kv/resp_conversation.hpp>

namespace kv {
namespace {

using namespace weft;

using looking::record_memory;
using looking::words_for;

class kv_table : public testing::Test {
 protected:
  static constexpr std::uint64_t buckets = 64;

  [[nodiscard]] std::span<std::byte> memory() { return std::as_writable_bytes(std::span(words_)); }
  [[nodiscard]] std::span<std::byte, bucket_bytes> bucket(std::uint64_t number) {
    return memory().subspan(number * bucket_bytes).first<bucket_bytes>();
  }
  outcome look(std::string_view key, value& into, moment now) {
    return looking::look(memory(), buckets, key, into, now);
  }
  static outcome next_in(std::span<const std::byte, bucket_bytes> bucket, std::uint64_t number, std::string_view key,
                         value& into) {
    record_place place;
    return bucket_search(bucket, number, key, now_).next(into, place);
  }
  bool get(key_in key, value& into, moment now) { return looking::get(table_, key, into, now); }
  [[nodiscard]] bool has_nothing_of(char text) {
    return std::ranges::none_of(memory(), [text](std::byte each) { return each == static_cast<std::byte>(text); });
  }
  /// By the server, and by clients that read its memory.
  void expect_found(std::string_view key, std::string_view text) {
    value here;
    value there;
    EXPECT_TRUE(get(key, here, now_)) << key;
    EXPECT_EQ(here.view(), text);
    EXPECT_EQ(look(key, there, now_), outcome::found) << key;
    EXPECT_EQ(there.view(), text);
  }
  void expect_absent(std::string_view key) {
    value got;
    EXPECT_FALSE(get(key, got, now_)) << key;
    EXPECT_EQ(look(key, got, now_), outcome::absent) << key;
  }
  /// The ring of records comes round: nothing is left of what others have overwritten.
  void come_round() {
    for (std::size_t i = 0; i < 2 * record_memory / 1000; ++i) {
      table_.set("passing", std::string(1000, 'p'), {}, now_);
      table::entry(table_, "passing", now_).erase();
    }
  }
  /// Of an empty table.
  void expect_nothing_left() {
    EXPECT_EQ(table_.record_bytes(), 0u);
    come_round();
    EXPECT_TRUE(test::is_zero(memory()));
  }
  /// Clears the table, so many buckets at a time.
  void clear(std::uint64_t buckets_at_a_time) {
    table::clearing all(table_);
    while (all.go_on(buckets_at_a_time)) {
    }
  }

  static inline moment now_ = 1'800'000'000'000;

  std::vector<std::uint64_t> words_ = words_for(buckets);
  table table_{memory(), buckets};
};

TEST_F(kv_table, keys_and_values_of_any_size_are_found_by_one_read_or_two) {
  std::map<std::string, std::string> all;
  for (const std::size_t key_bytes : {std::size_t{0}, std::size_t{1}, room_in_slot, room_in_slot + 1, longest_key}) {
    const std::string key(key_bytes, 'k');
    expect_absent(key);
    for (const std::size_t bytes :
         {room_in_slot, room_in_slot + 1, std::size_t{0}, table_.longest_value(), std::size_t{9}}) {
      const std::string text(bytes, static_cast<char>('a' + bytes % 26));
      table_.set(key, text, {.flags = 7}, now_);
      expect_found(key, text);
      value seen;
      look(key, seen, now_);
      EXPECT_EQ(seen.flags(), 7u);
      all[key] = text;
    }
  }
  EXPECT_EQ(table_.size(), all.size());
  for (const auto& [key, text] : all) {
    expect_found(key, text);
    table::entry(table_, key, now_).erase();
    expect_absent(key);
  }
  EXPECT_EQ(table_.size(), 0u);
  expect_nothing_left();
}

TEST_F(kv_table, half_full_it_keeps_all_keys_and_overfull_it_keeps_the_newest) {
  constexpr std::uint64_t half = buckets * slots_in_bucket / 2;
  value got;
  for (std::uint64_t i = 0; i < half; ++i) table_.set(bench_key(i), bench_value(i, {}), {}, now_);
  for (std::uint64_t i = 0; i < half; ++i) {
    EXPECT_EQ(look(bench_key(i), got, now_), outcome::found) << i;
    EXPECT_TRUE(version_in(got.view(), i).has_value());
  }
  for (std::uint64_t i = half; i < 10 * half; ++i) {
    table_.set(bench_key(i), bench_value(i, {.server = 1, .number = 1}), {}, now_);
    EXPECT_EQ(look(bench_key(i), got, now_), outcome::found) << i;
  }
}

TEST_F(kv_table, any_byte_of_another_version_is_noticed) {
  const places where = places_of("key", buckets);
  const auto read = [&](std::uint64_t number) {
    std::array<std::byte, bucket_bytes> copy;
    std::copy_n(bucket(number).begin(), bucket_bytes, copy.begin());
    return copy;
  };
  table_.set("key", std::string(64, 'x'), {}, now_);
  const auto before = read(where.first);
  table_.set("key", std::string(64, 'y'), {}, now_);
  const auto after = read(where.first);
  ASSERT_NE(before, after);
  // A read may stop seeing the old bytes and begin to see the new ones anywhere, and the other way round.
  for (std::size_t cut = 0; cut <= slot_bytes; ++cut) {
    for (const auto& [head, tail] : {std::pair(&before, &after), std::pair(&after, &before)}) {
      auto torn = *tail;
      std::copy_n(head->begin(), cut, torn.begin());
      value got;
      const outcome result = next_in(torn, where.first, "key", got);
      if (torn == before || torn == after) {
        EXPECT_EQ(result, outcome::found);
      } else {
        EXPECT_EQ(result, outcome::torn) << cut;
      }
    }
  }
}

TEST_F(kv_table, makes_no_sense_of_bytes_that_make_none) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 1000; ++round) {
    std::array<std::byte, bucket_bytes> bytes;
    for (std::byte& each : bytes) each = static_cast<std::byte>(random());
    value got;
    EXPECT_NE(next_in(bytes, 0, "key", got), outcome::found);
  }
  // An entry of another bucket is none of this one's.
  table_.set("key", "value", {}, now_);
  const places where = places_of("key", buckets);
  value got;
  EXPECT_EQ(next_in(bucket(where.first), where.first + 1, "key", got), outcome::torn);
}

TEST(kv_protocol, requests_arrive_as_they_were_made_and_no_others) {
  std::array<std::byte, message_bytes> room{};
  const std::span<const std::byte> bytes(room);
  const std::string key(longest_key, 'k');
  std::string words(message_bytes, 'v');
  while (!fits_message(key, words)) words.pop_back();
  EXPECT_GT(words.size(), 0u);
  const mr::remote_region memory(7, 4096, longest_value, mr::usage::read_src);
  for (const set_request& what : {set_request{.key = key, .value = words}, set_request{.key = "a", .value = ""},
                                  set_request{.key = key, .value = memory}}) {
    const std::size_t size = pack(what, room);
    const auto taken = unpack_set(bytes.first(size));
    ASSERT_TRUE(taken);
    EXPECT_EQ(taken->key, what.key);
    EXPECT_EQ(taken->value, what.value);
  }
  const std::string_view wrong[] = {"",
                                    std::string_view("\0\1", 2),
                                    std::string_view("\0\0\0abc", 6),
                                    std::string_view("\0\5\0key", 6),
                                    std::string_view("\0\4\0k yz", 7),
                                    std::string_view("\0\3\0k\ny", 6),
                                    std::string_view("\2\1\0k", 4),
                                    std::string_view("\1\1\0k", 4),
                                    std::string_view("\1\1\0kxyz", 7),
                                    "\xff\xff\xff"};
  for (const std::string_view text : wrong) EXPECT_FALSE(unpack_set(std::as_bytes(std::span(text)))) << text;
  const mr::remote_region write_only(7, 4096, 100, mr::usage::write_dst);
  const std::size_t size = pack(set_request{.key = "a", .value = write_only}, room);
  EXPECT_FALSE(unpack_set(bytes.first(size)));
}

TEST(kv_protocol, a_hello_that_is_no_tables_is_refused) {
  std::array<std::byte, message_bytes> room{};
  std::uint64_t longest = 9;
  const auto unpack = [&](std::uint64_t size, std::uint64_t buckets, mr::usage usage) {
    const mr::remote_region memory(7, 4096, size, usage);
    const hello said{.memory = memory, .buckets = buckets, .longest_value = longest, .server = 7, .now = 5};
    return unpack_hello(std::span(room).first(pack(said, room)));
  };
  const hello taken = unpack(3 * bucket_bytes + 100, 3, mr::usage::read_src);
  EXPECT_EQ(taken.longest_value, 9u);
  longest = longest_value + 1;
  EXPECT_THROW(static_cast<void>(unpack(3 * bucket_bytes, 3, mr::usage::read_src)), error);
  longest = longest_value;
  EXPECT_EQ(taken.memory.size(), 3 * bucket_bytes + 100);
  EXPECT_EQ(taken.buckets, 3u);
  EXPECT_EQ(taken.server, 7u);
  EXPECT_EQ(taken.now, 5u);
  EXPECT_THROW(static_cast<void>(unpack(3 * bucket_bytes - 1, 3, mr::usage::read_src)), error);
  EXPECT_THROW(static_cast<void>(unpack(3 * bucket_bytes, 0, mr::usage::read_src)), error);
  EXPECT_THROW(static_cast<void>(unpack(3 * bucket_bytes, 3, mr::usage::write_dst)), error);
  EXPECT_THROW(static_cast<void>(unpack(bucket_bytes << 33, std::uint64_t{1} << 33, mr::usage::read_src)), error);
  EXPECT_THROW(static_cast<void>(unpack(bucket_bytes, (std::uint64_t{1} << 54) + 1, mr::usage::read_src)), error);
  EXPECT_THROW(static_cast<void>(unpack_hello({})), error);
}

struct heard {
  std::string answers;
  std::size_t left = 0;
  bool goes_on = true;
};

/// What a session says to words that come in pieces of so many bytes. `wants_turn()`: whether it does, with nothing
/// new.
template <class Session, class WantsTurn>
heard say_in_pieces(Session& session, std::string_view words, std::size_t piece, std::size_t most_left,
                    const WantsTurn& wants_turn) {
  heard all;
  std::string input;
  while (!words.empty() && all.goes_on) {
    input += words.substr(0, piece);
    words.remove_prefix(std::min(piece, words.size()));
    for (std::size_t taken = 1; ((taken != 0 && !input.empty()) || wants_turn()) && all.goes_on;) {
      const auto count = session.execute(input, all.answers);
      all.goes_on = count.has_value();
      taken = count.value_or(0);
      input.erase(0, taken);
    }
    EXPECT_LE(input.size(), most_left);
  }
  all.left = input.size();
  return all;
}

class kv_text : public kv_table {
 protected:
  static moment clock() noexcept { return now_; }

  heard say(std::string_view words, std::size_t piece) {
    text_session session(table_, clock);
    const std::size_t most_left = text_session::longest_command + table_.longest_value() + 2;
    return say_in_pieces(session, words, piece, most_left, [] { return false; });
  }
};

TEST_F(kv_text, commands_are_answered_however_they_are_cut) {
  const std::string words =
      "get a\r\nset a 0 0 5\r\nhe\nlo\r\nget a\r\nset b 7 9 0\r\n\r\nget b\nget  a\r\nfrobnicate\r\nget\r\nget a b\r\n";
  const std::string answers =
      "END\r\nSTORED\r\nVALUE a 0 5\r\nhe\nlo\r\nEND\r\nSTORED\r\nVALUE b 7 0\r\n\r\nEND\r\n"
      "VALUE a 0 5\r\nhe\nlo\r\nEND\r\nERROR\r\nERROR\r\nERROR\r\n";
  for (std::size_t piece = 1; piece <= words.size(); ++piece) {
    std::fill(words_.begin(), words_.end(), 0);
    const heard all = say(words, piece);
    EXPECT_EQ(all.answers, answers) << piece;
    EXPECT_EQ(all.left, 0u);
  }
}

TEST_F(kv_text, a_long_value_comes_back_however_it_is_cut) {
  const std::string text(table_.longest_value(), 'v');
  const std::string size = std::to_string(text.size());
  const std::string words = "set a 7 0 " + size + "\r\n" + text + "\r\nget a\r\n";
  for (const std::size_t piece : {std::size_t{97}, std::size_t{4096}, words.size()}) {
    const heard all = say(words, piece);
    EXPECT_EQ(all.answers, "STORED\r\nVALUE a 7 " + size + "\r\n" + text + "\r\nEND\r\n") << piece;
    EXPECT_EQ(all.left, 0u);
  }
}

TEST_F(kv_text, answers_are_handed_over_before_they_grow_without_end) {
  const std::string text(table_.longest_value(), 'v');
  table_.set("a", text, {}, now_);
  std::string words;
  for (int i = 0; i < 1000; ++i) words += "get a\n";
  text_session session(table_, clock);
  std::string answers;
  const auto taken = session.execute(words, answers);
  ASSERT_TRUE(taken);
  EXPECT_LT(*taken, words.size());
  EXPECT_GE(answers.size(), text_session::enough_answers);
  EXPECT_LE(answers.size(), text_session::enough_answers + text.size() + 100);
}

TEST_F(kv_text, flags_come_back_as_they_were_set) {
  EXPECT_EQ(say("set a 4294967295 0 1\r\nx\r\nget a\r\n", 100).answers,
            "STORED\r\nVALUE a 4294967295 1\r\nx\r\nEND\r\n");
  EXPECT_EQ(say("set a 0 0 1\r\ny\r\nget a\r\n", 100).answers, "STORED\r\nVALUE a 0 1\r\ny\r\nEND\r\n");
}

TEST_F(kv_text, a_value_is_there_until_it_expires_for_clients_of_either_kind) {
  constexpr std::uint64_t month = 30 * 24 * 60 * 60;
  const moment start = now_;
  const moment second = start / 1000;
  struct {
    std::string expiry;
    moment last;  // at which it is there
  } const some[] = {{"0", latest_moment},
                    {"1", start + 999},
                    {"2592000", start + month * 1000 - 1},
                    {std::to_string(second + 10), (second + 10) * 1000 - 1},
                    {"99999999999", 99'999'999'998'999},
                    {"9223372036854775807", latest_moment / 1000 * 1000 - 1}};
  for (const auto& each : some) {
    EXPECT_EQ(say("set a 0 " + each.expiry + " 1\r\nx\r\n", 100).answers, "STORED\r\n");
    now_ = each.last;
    value got;
    EXPECT_EQ(say("get a\r\n", 100).answers, "VALUE a 0 1\r\nx\r\nEND\r\n") << each.expiry;
    EXPECT_EQ(look("a", got, now_), outcome::found) << each.expiry;
    if (each.expiry != "0") {
      ++now_;
      EXPECT_EQ(say("get a\r\n", 100).answers, "END\r\n") << each.expiry;
      EXPECT_EQ(look("a", got, now_), outcome::absent) << each.expiry;
    }
    now_ = start;
  }
}

TEST_F(kv_text, a_value_that_expires_in_the_past_takes_the_older_one_with_it) {
  for (const std::string expiry : {"-1", "2592001"}) {
    const std::string words = "set a 0 0 1\r\nx\r\nset a 0 " + expiry + " 1\r\ny\r\nget a\r\n";
    EXPECT_EQ(say(words, 100).answers, "STORED\r\nSTORED\r\nEND\r\n") << expiry;
  }
}

TEST_F(kv_text, what_cannot_be_followed_ends_the_session) {
  const std::string too_long = "get" + std::string(text_session::longest_command, ' ') + "a\r\n";
  const std::string_view wrong[] = {too_long,
                                    "set a x 0 0\r\n\r\n",
                                    "set a -1 0 0\r\n\r\n",
                                    "set a 4294967296 0 0\r\n\r\n",
                                    "set a 0 soon 0\r\n\r\n",
                                    "set a 0 0 x\r\n",
                                    "set a 0 0 1048577\r\n",
                                    "set a 0 0\r\n",
                                    "set a 0 0 1 2 3\r\n",
                                    "set a 0 0 -1\r\n",
                                    "set a 0 0 1\r\nab\r\n",
                                    "set a 0 0 1\r\nabcde\n",
                                    "set a 0 0 0\r\nab",
                                    "set a 0 0 99999999999999999999\r\n"};
  for (const std::string_view words : wrong) {
    for (const std::size_t piece : {std::size_t{1}, words.size()}) {
      const heard all = say(words, piece);
      EXPECT_FALSE(all.goes_on) << words;
      EXPECT_NE(all.answers.find("ERROR"), std::string::npos) << words;
    }
  }
  EXPECT_FALSE(say(std::string(100'000, 'x'), 10).goes_on);
}

TEST_F(kv_table, values_that_have_expired_make_room_before_those_that_have_not) {
  const std::uint64_t all = buckets * slots_in_bucket;
  for (std::uint64_t i = 0; i < 4 * all; ++i) table_.set(bench_key(i), "old", {.expires = now_ + 1}, now_);
  const moment later = now_ + 1;
  value got;
  const std::uint64_t few = all / 4;
  for (std::uint64_t i = 0; i < few; ++i) table_.set(bench_key(i), "new", {}, later);
  for (std::uint64_t i = 0; i < few; ++i) EXPECT_TRUE(get(bench_key(i), got, later)) << i;
}

// A client's clock may show anything, and go a little faster or slower than the server's.
TEST(kv_clock, a_client_never_takes_the_server_to_be_earlier_than_it_is) {
  using local = clock_bound::local;
  using std::chrono::milliseconds;
  const local::time_point asked{std::chrono::hours(1)};
  const moment shown = 1'800'000'000'000;
  const clock_bound bound(shown, asked);
  for (const std::int64_t passed : {0, 1, 999, 60'000, 86'400'000}) {
    const moment latest = bound.latest(asked + milliseconds(passed));
    const auto by_fast_server = static_cast<moment>(passed) + static_cast<moment>(passed) / clock_bound::drift;
    EXPECT_GE(latest, shown + by_fast_server) << passed;
    EXPECT_LE(latest, shown + by_fast_server + 1) << passed;
  }
  EXPECT_FALSE(bound.is_old(asked + milliseconds(59'000)));
  EXPECT_TRUE(bound.is_old(asked + milliseconds(61'000)));
}

TEST_F(kv_table, nothing_is_left_of_a_longer_value_behind_a_shorter_one) {
  for (const std::size_t bytes : {room_in_slot - 3, table_.longest_value()}) {
    table_.set("key", std::string(bytes, 's'), {}, now_);
    table_.set("key", "x", {}, now_);
    EXPECT_TRUE(has_nothing_of('s')) << bytes;
    table_.set("key", std::string(bytes, 's'), {}, now_);
    table_.set("key", std::string(room_in_slot, 'x'), {}, now_);
    come_round();
    EXPECT_TRUE(has_nothing_of('s')) << bytes;
  }
}

// The bytes of a key with another text whose hash is the same: these differ by the polynomial of the CRC.
std::string with_the_hash_of(std::string key) {
  constexpr std::uint64_t polynomial = 0xc96c5795d7870f42;
  const auto change = [&](std::size_t at, std::uint64_t bits) {
    key[at] = static_cast<char>(static_cast<unsigned char>(key[at]) ^ (bits & 0xff));
  };
  for (std::size_t i = 0; i < 8; ++i) change(i, (polynomial << 1 | 1) >> (8 * i));
  change(8, polynomial >> 63);
  return key;
}

TEST_F(kv_table, keys_of_one_hash_are_two_keys) {
  const std::string one(room_in_slot + 1, 'k');
  const std::string other = with_the_hash_of(one);
  ASSERT_NE(one, other);
  ASSERT_EQ(places_of(one, UINT32_MAX).first, places_of(other, UINT32_MAX).first);
  ASSERT_EQ(places_of(one, UINT32_MAX).second, places_of(other, UINT32_MAX).second);
  table_.set(one, "first", {}, now_);
  expect_absent(other);
  table_.set(other, "second", {}, now_);
  EXPECT_EQ(table_.size(), 2u);
  expect_found(one, "first");
  expect_found(other, "second");
}

TEST_F(kv_table, who_comes_late_to_a_record_finds_it_whole_or_nothing_of_another_one) {
  const auto place_of = [&](std::string_view key) {
    record_place place;
    value none;
    const std::uint64_t number = places_of(key, buckets).first;
    EXPECT_EQ(bucket_search(bucket(number), number, key, now_).next(none, place), outcome::in_record);
    return place;
  };
  const std::string text(1000, 'a');
  for (const bool changed : {false, true}) {
    table_.set("key", text, {}, now_);
    const record_place place = place_of("key");
    const auto late = [&] {
      value got;
      return read_record(memory().subspan(place.offset, place.bytes()), place, "key", got);
    };
    EXPECT_EQ(late(), outcome::found);
    if (changed) {
      table_.set("key", std::string(1000, 'b'), {}, now_);
    } else {
      table::entry(table_, "key", now_).erase();
    }
    // The ring comes round, also with records of that size, for that key.
    outcome expected = changed ? outcome::found : outcome::torn;
    for (std::size_t i = 0; i < 2 * record_memory / text.size(); ++i) {
      if (late() == outcome::torn && i > record_memory / text.size() / 2) expected = outcome::torn;
      ASSERT_EQ(late(), expected) << i;
      table_.set("key", std::string(1000, static_cast<char>('c' + i % 20)), {}, now_);
    }
    EXPECT_EQ(late(), outcome::torn);
  }
}

TEST_F(kv_table, any_byte_of_another_record_is_noticed) {
  const std::string key(longest_key, 'k');
  table_.set(key, std::string(40, 'x'), {}, now_);
  record_place place;
  value got;
  const std::uint64_t number = places_of(key, buckets).first;
  ASSERT_EQ(bucket_search(bucket(number), number, key, now_).next(got, place), outcome::in_record);
  std::vector<std::byte> read(place.bytes());
  std::ranges::copy(memory().subspan(place.offset, read.size()), read.begin());
  for (std::byte& each : read) {
    each ^= std::byte{1};
    EXPECT_EQ(read_record(read, place, key, got), outcome::torn);
    each ^= std::byte{1};
  }
  EXPECT_EQ(read_record(read, place, key, got), outcome::found);
  EXPECT_EQ(read_record(std::span(read).first(read.size() - 1), place, key, got), outcome::torn);
}

TEST_F(kv_table, records_that_were_set_longest_ago_make_room) {
  const std::string text(1000, 'v');
  constexpr std::uint64_t fit = record_memory / 1040;
  for (std::uint64_t i = 0; i < 3 * fit; ++i) {
    table_.set(bench_key(i), text, {}, now_);
    EXPECT_LE(table_.record_bytes(), table_.record_memory());
  }
  EXPECT_EQ(table_.evicted(), 3 * fit - table_.size());
  EXPECT_GE(table_.size(), fit * 9 / 10);
  for (std::uint64_t i = 0; i < 3 * fit; ++i) {
    value got;
    EXPECT_EQ(look(bench_key(i), got, now_), i >= 3 * fit - table_.size() ? outcome::found : outcome::absent) << i;
  }
  table_.set("long", std::string(table_.longest_value(), 'v'), {}, now_);
  value got;
  EXPECT_EQ(look("long", got, now_), outcome::found);
}

TEST_F(kv_table, records_that_are_seldom_set_stay_while_others_are_set_again_and_again) {
  const std::string text(500, 'v');
  constexpr std::uint64_t kept = record_memory / 2 / 530;
  for (std::uint64_t i = 0; i < kept; ++i) table_.set(bench_key(i), text, {.expires = now_ + 10 + i % 2}, now_);
  for (int i = 0; i < 20'000; ++i) {
    table_.set("hot", std::string(static_cast<std::size_t>(97 + i % 3000), 'h'), {}, now_);
  }
  EXPECT_EQ(table_.evicted(), 0u);
  value got;
  for (std::uint64_t i = 0; i < kept; ++i) {
    EXPECT_EQ(look(bench_key(i), got, now_), outcome::found) << i;
    EXPECT_EQ(got.view(), text);
  }
  // What has expired is not carried along.
  const moment later = now_ + 10;
  for (int i = 0; i < 5'000; ++i) table_.set("hot", text, {}, later);
  EXPECT_EQ(table_.evicted(), 0u);
  EXPECT_EQ(table_.size(), 1 + kept / 2);
}

TEST_F(kv_table, the_longest_values_stay_while_they_take_half_of_the_memory) {
  const std::string text(table_.longest_value(), 'v');
  const std::string key(longest_key - 1, 'k');
  for (int i = 0; i < 10'000; ++i) table_.set(key + static_cast<char>('0' + i * i % 4), text, {}, now_);
  EXPECT_EQ(table_.evicted(), 0u);
}

TEST_F(kv_table, what_is_set_pays_for_what_it_moves) {
  constexpr std::uint64_t keys = 95;
  const std::string text(2000, 'v');  // of nearly three quarters of the memory
  for (std::uint64_t i = 0; i < keys; ++i) table_.set(bench_key(i), text, {}, now_);
  const auto place_of = [&](std::uint64_t i) {
    const std::string key = bench_key(i);
    record_place place;
    value none;
    const places where = places_of(key, buckets);
    for (const std::uint64_t number : {where.first, where.second}) {
      if (bucket_search(bucket(number), number, key, now_).next(none, place) == outcome::in_record) break;
    }
    return place.offset;
  };
  std::vector<std::uint64_t> before(keys);
  for (std::uint64_t i = 0; i < keys; ++i) before[i] = place_of(i);
  const std::string small(room_in_slot, 's');
  std::uint64_t bytes_set = 0;
  std::uint64_t bytes_moved = 0;
  for (int round = 0; round < 5'000; ++round) {
    table_.set("small", small, {}, now_);
    bytes_set += record_head_bytes + 5 + small.size();
    for (std::uint64_t i = 0; i < keys; ++i) {
      const std::uint64_t now = place_of(i);
      if (std::exchange(before[i], now) != now) bytes_moved += text.size();
    }
    ASSERT_LE(bytes_moved, 4 * bytes_set + record_memory / 2) << round;
  }
  EXPECT_GT(bytes_moved, record_memory);
  EXPECT_EQ(table_.evicted(), 0u);
}

// Though its record is the oldest, and makes room for what is to be stored.
TEST_F(kv_table, a_key_that_is_set_anew_is_there_until_then) {
  const std::string old(900, 'o');
  const std::size_t most = table_.longest_value();
  for (const std::size_t stored : {most, std::size_t{0}, std::size_t{200}}) {
    const std::string text(stored, 'n');
    const bool stores = stored != 0;
    table_.set("own", old, {.flags = 1}, now_);
    for (int i = 0; table_.record_bytes() < record_memory - most / 2; ++i) {
      table_.set(bench_key(static_cast<std::uint64_t>(i)), std::string(1000, 'v'), {}, now_);
    }
    const std::uint64_t evicted = table_.evicted();
    value got;
    {
      table::entry place(table_, "own", now_, most);
      ASSERT_TRUE(place.there());
      EXPECT_EQ(place.view(), old);
      EXPECT_EQ(place.beside().flags, 1u);
      EXPECT_GT(table_.evicted(), evicted);
      if (stores) place.store(text, place.beside());
    }
    EXPECT_TRUE(std::ranges::search(memory(), std::as_bytes(std::span(old)).first(20)).empty());
    EXPECT_EQ(get("own", got, now_), stores);
    EXPECT_EQ(look("own", got, now_), stores ? outcome::found : outcome::absent);
    EXPECT_EQ(got.view(), stores ? text : "");
    EXPECT_EQ(got.flags(), stores ? 1u : 0u);
    { table::clearing all(table_); }
    expect_nothing_left();
    EXPECT_EQ(table_.size(), 0u);
  }
}

TEST_F(kv_table, what_is_beside_a_long_value_changes_without_it) {
  const std::string text(5000, 'v');
  table_.set("key", text, {.flags = 3}, now_);
  {
    table::entry place(table_, "key", now_);
    place.change({.flags = 4, .expires = now_ + 10});
    EXPECT_EQ(place.view(), text);
  }
  value got;
  EXPECT_EQ(look("key", got, now_ + 9), outcome::found);
  EXPECT_EQ(got.view(), text);
  EXPECT_EQ(got.flags(), 4u);
  EXPECT_EQ(look("key", got, now_ + 10), outcome::absent);
  EXPECT_EQ(table_.expiring(), 1u);
}

// Whatever is done: what is found is what was set last, for the server as for clients, and nothing is left behind.
TEST_F(kv_table, agrees_with_a_map_but_for_what_has_made_room) {
  for (const unsigned seed : {1u, 2u, 3u}) {
    std::mt19937_64 random(seed);
    std::map<std::string, std::string> model;
    const auto key_of = [](std::uint64_t i) { return std::string(i % 3 == 0 ? 200 : 2, 'k') + std::to_string(i); };
    const std::uint64_t keys = seed * 100;
    for (int round = 0; round < 10'000; ++round) {
      const std::string key = key_of(random() % keys);
      const auto what = random() % 10;
      if (what < 6) {
        const std::size_t longest = random() % 50 == 0 ? table_.longest_value() : 600;
        model[key] = std::string(random() % (longest + 1), static_cast<char>('a' + random() % 26));
        table_.set(key, model[key], {}, now_);
      } else if (what == 6) {
        table::entry(table_, key, now_).erase();
        model.erase(key);
      } else if (what == 7) {
        table::entry place(table_, key, now_);
        if (place.there()) place.change({.flags = 1});
      }
      const std::string asked = key_of(random() % keys);
      value here;
      value there;
      const bool found = get(asked, here, now_);
      ASSERT_EQ(look(asked, there, now_), found ? outcome::found : outcome::absent);
      ASSERT_EQ(here.view(), there.view());
      if (found) {
        ASSERT_TRUE(model.contains(asked) && model[asked] == here.view()) << asked << " in round " << round;
      }
    }
    EXPECT_GE(table_.size(), model.size() / 2);
    clear(1);
    expect_nothing_left();
  }
}

// A text that says of itself whether it is whole.
std::string telling(std::uint64_t number, std::size_t bytes) {
  const std::string word = std::to_string(number) + ' ';
  std::string made;
  while (made.size() < bytes) made += word;
  return made;
}

bool is_whole(std::string_view text) {
  const std::string_view word = text.substr(0, text.find(' ') + 1);
  while (!word.empty() && text.starts_with(word)) text.remove_prefix(word.size());
  return text.empty();
}

TEST_F(kv_table, many_threads_set_and_find_values_of_any_size) {
  std::atomic<int> found = 0;
  const auto work = [&](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 3'000; ++i) {
      const std::string key = bench_key(random() % 200);
      if (random() % 2 == 0) {
        table_.set(key, telling(random() % 1000, 1 + random() % 4000), {}, now_);
      } else if (const auto here = table_.find(key, now_)) {
        EXPECT_TRUE(is_whole(here->view()));
        ++found;
      }
      if (i % 100 == 0) table::entry(table_, key, now_).erase();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 1; i <= 3; ++i) threads.emplace_back(work, i);
  }
  EXPECT_GT(found, 0);
  clear(buckets);
  EXPECT_EQ(table_.size(), 0u);
  expect_nothing_left();
}

TEST_F(kv_table, what_is_set_while_a_table_is_cleared_stays) {
  for (std::uint64_t i = 0; i < buckets; ++i) table_.set(bench_key(i), "old", {}, now_);
  table::clearing all(table_);
  EXPECT_TRUE(all.go_on(buckets / 2));
  for (std::uint64_t i = 0; i < 8; ++i) table_.set(bench_key(i), "new", {}, now_);
  EXPECT_FALSE(all.go_on(buckets));
  EXPECT_EQ(table_.size(), 8u);
  value got;
  for (std::uint64_t i = 0; i < buckets; ++i) EXPECT_EQ(get(bench_key(i), got, now_), i < 8) << i;
}

// Whoever was told that a key is gone may tell others, who then read the table by themselves.
TEST_F(kv_table, what_the_server_finds_no_more_while_a_table_is_cleared_clients_do_not_find_either) {
  for (const char* key : {"got", "looked at", "set", "left"}) table_.set(key, "old", {}, now_);
  table::clearing all(table_);
  expect_absent("got");
  value found;
  EXPECT_FALSE(table::entry(table_, "looked at", now_).there());
  EXPECT_EQ(look("looked at", found, now_), outcome::absent);
  table_.set("set", "new", {}, now_);
  ASSERT_EQ(look("set", found, now_), outcome::found);
  EXPECT_EQ(found.view(), "new");
  EXPECT_EQ(look("left", found, now_), outcome::found);  // nobody has asked for it, and its bucket was not reached
  EXPECT_EQ(table_.size(), 2u);
  while (all.go_on(1)) {
  }
  EXPECT_EQ(table_.size(), 1u);
  EXPECT_EQ(look("left", found, now_), outcome::absent);
}

TEST_F(kv_table, expiries_are_counted_whatever_becomes_of_their_keys) {
  EXPECT_EQ(table_.mean_time_left(now_), 0u);
  table_.set("a", "1", {.expires = now_ + 1'500}, now_);
  table_.set("b", "1", {.expires = now_ + 2'501}, now_);
  table_.set("c", "1", {}, now_);
  EXPECT_EQ(table_.expiring(), 2u);
  EXPECT_EQ(table_.mean_time_left(now_), 2'000u);
  EXPECT_EQ(table_.mean_time_left(now_ + 5'000), 0u);
  table_.set("a", "2", {}, now_);
  EXPECT_EQ(table_.expiring(), 1u);
  EXPECT_EQ(table_.mean_time_left(now_), 2'501u);
  table::entry(table_, "b", now_).erase();
  EXPECT_EQ(table_.expiring(), 0u);
  const std::uint64_t far = 100'000;  // overfull, so that keys take the places of others
  for (std::uint64_t i = 0; i < 10 * buckets * slots_in_bucket; ++i) {
    table_.set(bench_key(i), "x", {.expires = now_ + (i % 2) * far}, now_);
  }
  clear(1);
  EXPECT_EQ(table_.expiring(), 0u);
  table_.set("a", "1", {.expires = now_ + 10}, now_);
  EXPECT_EQ(table_.mean_time_left(now_), 10u);
}

// Says to one client where a table is.
task<net::connection> greet(net::listener& listener, hello said) {
  auto request = co_await listener.next();
  auto peer = co_await request->accept({.receive_size = message_bytes});
  std::array<std::byte, message_bytes> room;
  said.now = server_now();
  co_await peer.send_bytes(std::span(room).first(pack(said, room)));
  co_return peer;
}

// Greets like that, and answers nothing.
task<> serve_reads(net::listener& listener, hello said) {
  auto peer = co_await greet(listener, said);
  while (co_await peer.recv()) {
  }
}

class kv_client : public testing::Test {
 protected:
  /// Runs `ask(client, table, memory)` beside a server of a table of so many buckets in that memory.
  template <class Ask, class Serve = task<> (*)(net::listener&, hello)>
  void with_client(std::uint64_t buckets, const Ask& ask, const Serve& serve = serve_reads) {
    const auto body = [&]() -> task<> {
      auto region = co_await server_device_.register_memory(words_for(buckets), {.usage = mr::usage::read_src});
      table data(region.bytes(), buckets);
      auto listener = co_await server_device_.listen("127.0.0.1:0");
      const hello said{.memory = region.remote(), .buckets = buckets, .longest_value = data.longest_value()};
      const auto ask_and_close = [&]() -> task<> {
        auto asking = co_await client::connect(device_, std::string(listener.address()));
        co_await ask(asking, data, region.bytes());
        co_await asking.close();
      };
      co_await when_all(serve(listener, said), ask_and_close());
    };
    executor().run(with_timeout(std::chrono::seconds(100), body()));
  }
  /// Of the client's pool.
  [[nodiscard]] std::size_t in_use_bytes() { return device_.pool().statistics().send.in_use_bytes; }

  net::device device_ = net::device::open("iwarp");
  net::device server_device_ = net::device::open("iwarp");
};

// While a thread sets values of all sizes, in memory that is used anew all the time.
TEST_F(kv_client, finds_whole_values_or_none_while_they_are_overwritten_moved_and_evicted) {
  constexpr std::uint64_t keys = 40;
  constexpr int enough = 1500;
  with_client(8, [&](client& asking, table& data, std::span<std::byte>) -> task<> {
    std::jthread writer([&](const std::stop_token& over) {
      std::mt19937_64 random(1);
      while (!over.stop_requested()) {
        data.set(bench_key(random() % keys), telling(random() % 1000, 1 + random() % 20'000), {}, server_now());
      }
    });
    int found = 0;
    for (std::uint64_t i = 0; found < enough; ++i) {
      value got;
      const std::string key = bench_key(i % keys);
      auto getting = as_result(asking.get(key, got));
      const auto there = co_await std::move(getting);
      if (!there) {  // the writer was without a processor in the middle of a SET for longer than clients wait
        EXPECT_TRUE(there.error().code() == errc::busy || there.error().code() == errc::malformed)
            << there.error().what();
        continue;
      }
      if (!*there) continue;
      EXPECT_TRUE(is_whole(got.view())) << got.view().substr(0, 100);
      ++found;
    }
    writer.request_stop();
    writer.join();
  });
}

TEST_F(kv_client, gives_up_on_a_server_whose_memory_is_never_whole) {
  with_client(1, [](client& asking, table& data, std::span<std::byte> memory) -> task<> {
    value got;
    data.set("long", std::string(1000, 'v'), {}, server_now());
    std::ranges::fill(memory.subspan(bucket_bytes), std::byte{1});
    EXPECT_EQ(co_await test::code_of(asking.get("long", got)), errc::busy);
    EXPECT_LE(asking.statistics().reads, 200u);
    std::ranges::fill(memory.first(bucket_bytes), std::byte{1});
    EXPECT_EQ(co_await test::code_of(asking.get("long", got)), errc::malformed);
    const std::string too_long(data.longest_value() + 1, 'v');
    EXPECT_EQ(co_await test::code_of(asking.set("long", too_long)), errc::message_too_large);
  });
}

TEST_F(kv_client, gets_more_values_at_a_time_than_its_memory_has_room_for) {
  net::device_options small;
  small.pool.max_bytes = std::size_t{1} << 20;
  small.pool.arena_bytes = std::size_t{128} << 10;
  device_ = net::device::open("iwarp", small);
  const std::size_t many = 2 * small.pool.max_bytes / bucket_bytes;
  std::size_t found = 0;
  with_client(1, [&](client& asking, table& data, std::span<std::byte>) -> task<> {
    const std::string text(data.longest_value(), 'v');
    data.set("long", text, {}, server_now());
    const auto get = [&]() -> task<> {
      value got;
      const bool is_there = co_await asking.get("long", got);
      found += is_there && got.view() == text;
    };
    const auto all = [&](scope& tasks) -> task<> {
      for (std::size_t i = 0; i < many; ++i) tasks.spawn(get());
      co_return;
    };
    co_await with_scope(on_failure::stop_siblings, all);
  });
  EXPECT_EQ(found, many);
}

// Their records are overtaken for ever, so that all but one of them wait for their turn to hurry.
TEST_F(kv_client, gets_that_are_stopped_while_one_of_them_hurries_leave_its_turn_to_the_next) {
  with_client(1, [&](client& asking, table& data, std::span<std::byte> memory) -> task<> {
    data.set("long", std::string(1000, 'v'), {}, server_now());
    std::ranges::fill(memory.subspan(bucket_bytes), std::byte{1});
    const std::size_t in_use = in_use_bytes();
    value got;
    for (int turns = 0; turns < 400; turns += 20) {
      std::array<value, 3> unused;
      const auto stopping = [&](scope& tasks) -> task<> {
        for (value& into : unused) tasks.spawn(asking.get("long", into));
        for (int i = 0; i < turns; ++i) co_await yield();
        tasks.request_stop();
      };
      co_await with_scope(on_failure::stop_siblings, stopping);
      EXPECT_EQ(co_await test::code_of(asking.get("long", got)), errc::busy) << turns;
      EXPECT_EQ(in_use_bytes(), in_use) << turns;
    }
  });
}

class kv_client_that_stops : public kv_client, public testing::WithParamInterface<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(sets, kv_client_that_stops, testing::Values(1, 50'000));

TEST_P(kv_client_that_stops, loses_no_connection_and_no_memory_and_its_answer_is_nobody_elses) {
  event first_came;
  event answer_first;
  int answered = 0;
  const auto serve = [&](net::listener& listener, hello said) -> task<> {
    said.longest_value = longest_value;
    auto peer = co_await greet(listener, said);
    while (auto message = co_await peer.recv()) {
      first_came.set();
      co_await answer_first.wait();
      std::array<std::byte, message_bytes> answer;
      const std::size_t size = pack(server_now(), answer);
      ++answered;
      co_await peer.send_bytes(std::span(answer).first(size));
    }
  };
  const auto ask = [&](client& asking, table&, std::span<std::byte>) -> task<> {
    const std::string text(GetParam(), '1');
    const std::size_t in_use = in_use_bytes();
    const auto stopping = [&](scope& tasks) -> task<> {
      tasks.spawn(asking.set("a", text));
      co_await first_came.wait();
      tasks.request_stop();
    };
    co_await with_scope(on_failure::stop_siblings, stopping);
    const auto stopping_more = [&](scope& tasks) -> task<> {
      tasks.spawn(asking.set("a", text));  // waits for that answer
      for (int i = 0; i < 100; ++i) co_await yield();
      tasks.request_stop();
    };
    co_await with_scope(on_failure::stop_siblings, stopping_more);
    answer_first.set();
    co_await asking.set("b", "2");
    EXPECT_EQ(answered, 2);
    EXPECT_EQ(in_use_bytes(), in_use);
    value found;
    EXPECT_FALSE(co_await asking.get("a", found));
  };
  with_client(1, ask, serve);
}

/// As RESP has a string of any bytes.
std::string bulk(const std::string& text) { return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n"; }

class kv_resp : public kv_table {
 protected:
  static moment clock() noexcept { return now_; }

  static heard say_to(resp_session& session, std::string_view words, std::size_t piece) {
    const auto wants_turn = [&] { return session.wants_turn(); };
    return say_in_pieces(session, words, piece, resp_session::longest_command + piece, wants_turn);
  }
  /// To a session of its own.
  heard say_anew(std::string_view words, std::size_t piece) {
    resp_session session(service_, "here");
    return say_to(session, words, piece);
  }
  /// The answer to commands in lines, by one client.
  std::string say(std::string_view lines) {
    std::string words;
    for (const char c : lines) words += c == '\n' ? std::string("\r\n") : std::string(1, c);
    return say_whole(words + "\r\n");
  }
  std::string say_whole(std::string_view words) { return say_to(lasting_, words, words.size()).answers; }

  void SetUp() override { now_ = 1'800'000'000'000; }

  resp_service service_{table_, clock};
  resp_session lasting_{service_, "there:1"};
};

TEST_F(kv_resp, commands_are_answered_however_they_are_cut) {
  const std::string words =
      "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$6\r\nhe\r\nlo\r\n*2\r\n$3\r\nget\r\n$1\r\na\r\nPING\r\n*0\r\n*-1\r\n\r\n"
      "  set  b 2 \r\nget b\n*3\r\n$4\r\nmget\r\n$1\r\nb\r\n$1\r\nc\r\n*1\r\n$4\r\nquit\r\n";
  const std::string answers = "+OK\r\n$6\r\nhe\r\nlo\r\n+PONG\r\n+OK\r\n$1\r\n2\r\n*2\r\n$1\r\n2\r\n$-1\r\n+OK\r\n";
  for (std::size_t piece = 1; piece <= words.size(); ++piece) {
    std::fill(words_.begin(), words_.end(), 0);
    const heard all = say_anew(words, piece);
    EXPECT_EQ(all.answers, answers) << piece;
    EXPECT_FALSE(all.goes_on);
  }
}

TEST_F(kv_resp, keys_and_values_may_have_any_bytes_and_as_many_as_the_table_takes) {
  const std::string key("\0 \r\n\xff", 5);
  const std::string bytes(table_.longest_value(), '\0');
  const std::string most = std::to_string(bytes.size());
  const auto ask = [&](const std::vector<std::string>& all) {
    std::string command = "*" + std::to_string(all.size()) + "\r\n";
    for (const std::string& each : all) command += bulk(each);
    return say_whole(command);
  };
  EXPECT_EQ(ask({"SET", key, bytes}), "+OK\r\n");
  EXPECT_EQ(ask({"GET", key}), bulk(bytes));
  EXPECT_EQ(ask({"SET", std::string(longest_key, 'k'), ""}), "+OK\r\n");
  EXPECT_EQ(ask({"GET", std::string(longest_key, 'k')}), bulk(""));
  EXPECT_EQ(ask({"SET", std::string(longest_key + 1, 'k'), ""}), "-ERR a key has at most 512 bytes here\r\n");
  EXPECT_EQ(ask({"SET", "k", bytes + "x"}), "-ERR a value has at most " + most + " bytes here\r\n");
  EXPECT_EQ(ask({"GET", std::string(longest_key + 1, 'k')}), "$-1\r\n");
  EXPECT_EQ(ask({"DEL", "", std::string(1000, 'k')}), ":0\r\n");
  EXPECT_EQ(ask({"SET", "", "x"}), "+OK\r\n");
  EXPECT_EQ(ask({"GET", ""}), bulk("x"));
  EXPECT_EQ(ask({"EXPIRE", "", "10"}), ":1\r\n");
  EXPECT_EQ(ask({"TTL", ""}), ":10\r\n");
  EXPECT_EQ(ask({"PERSIST", ""}), ":1\r\n");
  EXPECT_EQ(ask({"INCR", ""}), "-ERR value is not an integer or out of range\r\n");
  EXPECT_EQ(ask({"DEL", ""}), ":1\r\n");
  EXPECT_EQ(ask({"MSET", "k", "x", "l", bytes + "x"}), "-ERR a value has at most " + most + " bytes here\r\n");
  EXPECT_EQ(ask({"EXISTS", "k", "l"}), ":0\r\n");
  const std::string text = bytes.substr(1) + "x";
  EXPECT_EQ(ask({"SET", "k", text, "PX", "100", "GET"}), "$-1\r\n");
  EXPECT_EQ(ask({"PEXPIRE", "k", "50"}), ":1\r\n");
  EXPECT_EQ(ask({"GET", "k"}), bulk(text));
  EXPECT_EQ(ask({"SET", "k", "short", "GET", "KEEPTTL"}), bulk(text));
  EXPECT_EQ(ask({"PTTL", "k"}), ":50\r\n");
  EXPECT_EQ(ask({"INCR", std::string(longest_key, 'n')}), ":1\r\n");
  EXPECT_EQ(ask({"INCRBY", std::string(longest_key, 'n'), "9223372036854775806"}), ":9223372036854775807\r\n");
}

TEST_F(kv_resp, an_answer_of_many_long_values_has_a_limit_and_takes_room_for_its_bytes_alone) {
  const std::string text(table_.longest_value(), 'v');
  table_.set("a", text, {}, now_);
  const auto ask = [&](std::size_t count) {
    std::string words = "mget";
    for (std::size_t i = 0; i < count; ++i) words += " a";
    std::string answers;
    EXPECT_TRUE(lasting_.execute(words + "\r\n", answers));
    return answers;
  };
  const std::string whole = ask(resp_session::longest_answer / (text.size() + 20));
  EXPECT_GT(whole.size(), resp_session::longest_answer - 2 * text.size());
  EXPECT_LT(whole.capacity(), whole.size() + 10 * 1024);
  const std::string refused = ask(1000);
  EXPECT_EQ(refused, "-ERR the values have more than 2097152 bytes together\r\n");
  EXPECT_LT(refused.capacity(), 1000u);
}

TEST_F(kv_resp, set_does_what_its_options_say) {
  EXPECT_EQ(say("set a 1 xx"), "$-1\r\n");
  EXPECT_EQ(say("set a 1 nx"), "+OK\r\n");
  EXPECT_EQ(say("set a 2 nx"), "$-1\r\n");
  EXPECT_EQ(say("set a 3 XX get"), "$1\r\n1\r\n");
  EXPECT_EQ(say("set b 1 get"), "$-1\r\n");
  EXPECT_EQ(say("set a 4 px 1500\npttl a\nttl a"), "+OK\r\n:1500\r\n:2\r\n");
  EXPECT_EQ(say("set a 5 keepttl\npttl a"), "+OK\r\n:1500\r\n");
  EXPECT_EQ(say("set a 5\npttl a"), "+OK\r\n:-1\r\n");
  EXPECT_EQ(say("set a 5 exat 1800000002\npttl a"), "+OK\r\n:2000\r\n");
  EXPECT_EQ(say("set a 5 pxat 1800000000007\npttl a"), "+OK\r\n:7\r\n");
  for (const char* const wrong : {"set a 1 nx xx", "set a 1 ex", "set a 1 ex 1 px 1", "set a 1 keepttl ex 1",
                                  "set a 1 ex 1 keepttl", "set a 1 sometimes"}) {
    EXPECT_EQ(say(wrong), "-ERR syntax error\r\n") << wrong;
  }
  for (const char* const wrong : {"set a 1 ex 0", "set a 1 px -1", "set a 1 ex 9223372036854775807",
                                  "set a 1 px 9223372036854775807", "set a 1 exat 9223372036854776"}) {
    EXPECT_EQ(say(wrong), "-ERR invalid expire time in 'set' command\r\n") << wrong;
  }
  EXPECT_EQ(say("set a 1 ex 1.5"), "-ERR value is not an integer or out of range\r\n");
  EXPECT_EQ(say("setnx a x\nsetnx c x\nsetex c 1 y\npttl c\npsetex c 1 y\npttl c"),
            ":0\r\n:1\r\n+OK\r\n:1000\r\n+OK\r\n:1\r\n");
  EXPECT_EQ(say("setex c 0 y"), "-ERR invalid expire time in 'setex' command\r\n");
}

TEST_F(kv_resp, what_is_not_stored_makes_no_room) {
  const std::string most(table_.longest_value(), 'v');
  for (std::uint64_t i = 0; table_.record_bytes() + most.size() / 2 < record_memory; ++i) {
    table_.set(bench_key(i), std::string(1000, 'v'), {}, now_);
  }
  const std::string last = bench_key(table_.size() - 1);
  const std::uint64_t evicted = table_.evicted();
  EXPECT_EQ(say("set " + last + " " + most + " nx"), "$-1\r\n");
  EXPECT_TRUE(say("set " + last + " " + most + " nx get").starts_with("$1000\r\n"));
  EXPECT_EQ(say("set none " + most + " xx"), "$-1\r\n");
  EXPECT_EQ(say("set none " + most + " xx get"), "$-1\r\n");
  EXPECT_EQ(say("setnx " + last + " " + most), ":0\r\n");
  EXPECT_EQ(table_.evicted(), evicted);
}

// Though it is the oldest key, and its record makes room for the next one.
class kv_resp_when_full : public kv_resp {
 protected:
  void SetUp() override {
    kv_resp::SetUp();
    EXPECT_EQ(say("set " + key_ + " 41 px 1000"), "+OK\r\n");
    constexpr std::uint64_t record = 2056;
    for (std::uint64_t i = 0; table_.record_bytes() + record <= record_memory; ++i) {
      const std::string key = std::to_string(10'000'000 + i);
      table_.set(key, std::string(record - record_head_bytes - key.size(), 'v'), {}, now_);
    }
    EXPECT_EQ(table_.evicted(), 0u);
  }

  std::string key_ = std::string(longest_key, 'k');
};

TEST_F(kv_resp_when_full, a_number_is_counted_on) {
  EXPECT_EQ(say("incr " + key_), ":42\r\n");
  EXPECT_EQ(say("pttl " + key_), ":1000\r\n");
  EXPECT_GT(table_.evicted(), 0u);
}

TEST_F(kv_resp_when_full, set_knows_what_there_was) {
  const std::string most(table_.longest_value(), 'v');
  EXPECT_EQ(say("set " + key_ + " " + most + " xx keepttl get"), "$2\r\n41\r\n");
  EXPECT_EQ(say("pttl " + key_), ":1000\r\n");
  EXPECT_GT(table_.evicted(), 0u);
}

TEST_F(kv_resp, an_expiry_may_be_as_far_away_as_redis_takes_it) {
  EXPECT_EQ(say("set a 1 exat 4294967296\npttl a"), "+OK\r\n:2494967296000\r\n");
  EXPECT_EQ(say("set a 1 pxat 99999999999999\npttl a"), "+OK\r\n:98199999999999\r\n");
  EXPECT_EQ(say("set a 1 ex 4294967295\nttl a\nexpire a 5000000000\nttl a"),
            "+OK\r\n:4294967295\r\n:1\r\n:5000000000\r\n");
  value got;
  EXPECT_EQ(look("a", got, now_ + 4'999'999'999'999), outcome::found);
  EXPECT_EQ(look("a", got, now_ + 5'000'000'000'000), outcome::absent);
  const std::string last = std::to_string(latest_moment - now_);  // a table cannot name later ones
  for (const char* const far : {"set a 1 ex 9223370236854775", "set a 1 pxat 9223372036854775807",
                                "setex a 9223370236854775 1", "set a 1\nexpire a 9223370236854775"}) {
    EXPECT_TRUE(say(std::string(far) + "\npttl a").ends_with(":" + last + "\r\n")) << far;
  }
  EXPECT_EQ(say("expire a -9223372036854776"), "-ERR invalid expire time in 'expire' command\r\n");
  EXPECT_EQ(say("expire a 9223370236854776"), "-ERR invalid expire time in 'expire' command\r\n");
  EXPECT_EQ(say("pexpire a -9223372036854775808\nget a"), ":1\r\n$-1\r\n");
}

TEST_F(kv_resp, each_database_has_keys_of_its_own) {
  EXPECT_EQ(say("set a 0\nselect 1\nget a\nset a 1 px 5\nset b 1\ndbsize\nselect 15\nset a 15\nget a"),
            "+OK\r\n+OK\r\n$-1\r\n+OK\r\n+OK\r\n:2\r\n+OK\r\n+OK\r\n$2\r\n15\r\n");
  expect_found("a", "0");
  expect_absent("b");
  EXPECT_TRUE(say("info keyspace")
                  .ends_with("db0:keys=1,expires=0,avg_ttl=0\r\ndb1:keys=2,expires=1,avg_ttl=5\r\n"
                             "db15:keys=1,expires=0,avg_ttl=0\r\n\r\n"));
  EXPECT_NE(say("client list").find(" db=15 "), std::string::npos);
  resp_session other(service_, "other:1");
  EXPECT_EQ(say_to(other, "get a\r\n", 7).answers, "$1\r\n0\r\n");
  EXPECT_EQ(say("del a\nselect 1\nget a\nflushdb\ndbsize\nget b\nset c 1\nselect 0\nget a\nincr a"),
            ":1\r\n+OK\r\n$1\r\n1\r\n+OK\r\n:0\r\n$-1\r\n+OK\r\n+OK\r\n$1\r\n0\r\n:1\r\n");
  EXPECT_EQ(say("flushall\nselect 1\ndbsize\nget c\nselect 0\nget a"), "+OK\r\n+OK\r\n:0\r\n$-1\r\n+OK\r\n$-1\r\n");
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(kv_table, keys_are_counted_where_they_are_whatever_takes_their_places) {
  for (std::uint64_t i = 0; i < 10 * buckets * slots_in_bucket; ++i) {
    table_.set({bench_key(i), i % databases}, "x", {.expires = now_ + 1 + i % 7}, now_ + i % 3);
  }
  std::vector<std::uint64_t> found(databases);
  for (std::uint64_t i = 0; i < 10 * buckets * slots_in_bucket; ++i) {
    value got;
    found[i % databases] += get({bench_key(i), i % databases}, got, 0);
  }
  for (std::size_t i = 0; i < databases; ++i) {
    EXPECT_EQ(table_.size(i), found[i]) << i;
    EXPECT_EQ(table_.expiring(i), found[i]) << i;
  }
}

TEST_F(kv_resp, a_line_may_have_words_in_quotes) {
  const auto echoed = [&](const std::string& word) { return say_to(lasting_, "echo " + word + "\r\n", 1).answers; };
  EXPECT_EQ(echoed(R"("a b")"), "$3\r\na b\r\n");
  EXPECT_EQ(echoed(R"("")"), "$0\r\n\r\n");
  EXPECT_EQ(echoed(R"('a "b\' \n')"), "$8\r\na \"b' \\n\r\n");
  EXPECT_EQ(echoed(R"("\x41\xff\x4\n\r\t\b\a\"\\\q")"), "$12\r\nA\xffx4\n\r\t\b\a\"\\q\r\n");
  EXPECT_EQ(echoed(R"(a"b c")"), "$4\r\nab c\r\n");
  EXPECT_EQ(say("set \"\" ''\nget ''\n\"get\" \"\""), "+OK\r\n$0\r\n\r\n$0\r\n\r\n");
}

TEST_F(kv_resp, what_has_expired_is_gone_for_every_command_and_for_clients_that_read_by_themselves) {
  value got;
  EXPECT_EQ(say("set a 1 px 10"), "+OK\r\n");
  now_ += 9;
  EXPECT_EQ(look("a", got, now_), outcome::found);
  EXPECT_EQ(say("get a\npttl a"), "$1\r\n1\r\n:1\r\n");
  ++now_;
  EXPECT_EQ(look("a", got, now_), outcome::absent);
  EXPECT_EQ(say("get a\nmget a\nexists a\ndel a\nttl a\nexpire a 1\npersist a\nset a 1 xx"),
            "$-1\r\n*1\r\n$-1\r\n:0\r\n:0\r\n:-2\r\n:0\r\n:0\r\n$-1\r\n");
  EXPECT_EQ(say("set b 7 px 10"), "+OK\r\n");
  now_ += 10;
  EXPECT_EQ(say("incr b\npttl b"), ":1\r\n:-1\r\n");
}

TEST_F(kv_resp, expiries_are_changed_as_asked) {
  EXPECT_EQ(say("set a 1\nexpire a 10 xx\nexpire a 10 gt\nexpire a 10 nx\npttl a"),
            "+OK\r\n:0\r\n:0\r\n:1\r\n:10000\r\n");
  EXPECT_EQ(say("expire a 5 gt\nexpire a 20 lt\npexpire a 20000 gt\npexpire a 7 lt\npttl a"),
            ":0\r\n:0\r\n:1\r\n:1\r\n:7\r\n");
  EXPECT_EQ(say("persist a\npersist a\npttl a\nget a"), ":1\r\n:0\r\n:-1\r\n$1\r\n1\r\n");
  EXPECT_EQ(say("expire a 0\nget a"), ":1\r\n$-1\r\n");
  EXPECT_EQ(say("set a 1\npexpire a -5\nget a\ndbsize"), "+OK\r\n:1\r\n$-1\r\n:0\r\n");
  EXPECT_EQ(say("expire a soon"), "-ERR value is not an integer or out of range\r\n");
  EXPECT_EQ(say("expire a 9223372036854775807"), "-ERR invalid expire time in 'expire' command\r\n");
  EXPECT_EQ(say("expire a 1 often"), "-ERR Unsupported option often\r\n");
  const std::string nx_alone = "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n";
  EXPECT_EQ(say("expire a 1 nx xx\nexpire a 1 gt nx\nexpire a 1 nx lt"), nx_alone + nx_alone + nx_alone);
  EXPECT_EQ(say("expire a 1 gt lt\nexpire a 1 xx often"),
            "-ERR GT and LT options at the same time are not compatible\r\n-ERR Unsupported option often\r\n");
  EXPECT_EQ(say("set a 1\nexpire a 10 xx lt\nexpire a 10 lt lt\nexpire a 20 xx gt\nexpire a 15 gt xx\npttl a"),
            "+OK\r\n:0\r\n:1\r\n:1\r\n:0\r\n:20000\r\n");
}

TEST_F(kv_resp, integers_are_counted_to_the_last_one_and_not_beyond) {
  EXPECT_EQ(say("incr a\nincrby a 41\ndecr a\ndecrby a 1\nget a"), ":1\r\n:42\r\n:41\r\n:40\r\n$2\r\n40\r\n");
  EXPECT_EQ(say("set a 9223372036854775806\nincr a\nincr a"),
            "+OK\r\n:9223372036854775807\r\n-ERR increment or decrement would overflow\r\n");
  EXPECT_EQ(say("set a -9223372036854775808\ndecr a\nget a"),
            "+OK\r\n-ERR increment or decrement would overflow\r\n$20\r\n-9223372036854775808\r\n");
  EXPECT_EQ(say("decrby b -9223372036854775808"), "-ERR decrement would overflow\r\n");
  for (const char* const wrong : {"x", "1x", "+1", "01", "-0", "1.0", "9223372036854775808"}) {
    EXPECT_EQ(say("set a " + std::string(wrong) + "\nincr a"),
              "+OK\r\n-ERR value is not an integer or out of range\r\n")
        << wrong;
    EXPECT_EQ(say("incrby n " + std::string(wrong)), "-ERR value is not an integer or out of range\r\n") << wrong;
  }
  EXPECT_EQ(say("set a 5 px 100\nincr a\npttl a"), "+OK\r\n:6\r\n:100\r\n");
}

TEST_F(kv_resp, nulls_maps_and_sets_are_those_of_the_protocol_that_was_chosen) {
  EXPECT_EQ(say("hello 3"),
            "%7\r\n$6\r\nserver\r\n$2\r\nkv\r\n$7\r\nversion\r\n$5\r\n7.0.0\r\n$5\r\nproto\r\n:3\r\n"
            "$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
            "$7\r\nmodules\r\n*0\r\n");
  EXPECT_EQ(say("get a\nmget a"), "_\r\n*1\r\n_\r\n");
  EXPECT_EQ(say("config get save appendonly"), "%2\r\n$4\r\nsave\r\n$0\r\n\r\n$10\r\nappendonly\r\n$2\r\nno\r\n");
  EXPECT_EQ(say("client info").substr(0, 5), "=46\r\n");
  EXPECT_EQ(say("command info get"),
            "*1\r\n*10\r\n$3\r\nget\r\n:2\r\n~1\r\n+readonly\r\n:1\r\n:1\r\n:1\r\n*0\r\n*0\r\n*0\r\n*0\r\n");
  EXPECT_EQ(say("hello 2").substr(0, 5), "*14\r\n");
  EXPECT_EQ(say("get a\nconfig get save"), "$-1\r\n*2\r\n$4\r\nsave\r\n$0\r\n\r\n");
  EXPECT_EQ(say("hello 4\nhello x"),
            "-NOPROTO unsupported protocol version\r\n-ERR Protocol version is not an integer or out of range\r\n");
  EXPECT_EQ(say("hello 3 setname me\nclient getname").substr(0, 4), "%7\r\n");
  EXPECT_EQ(say("client getname"), "$2\r\nme\r\n");
  EXPECT_EQ(say("command info nosuch"), "*1\r\n_\r\n");
  EXPECT_EQ(say("hello 2 setname you nosuch"), "-ERR Syntax error in HELLO option 'nosuch'\r\n");
  EXPECT_EQ(say("hello 2 setname you setname a\x01"),
            "-ERR Client names cannot contain spaces, newlines or special characters.\r\n");
  EXPECT_EQ(say("client getname\nget a"), "$2\r\nme\r\n_\r\n");  // nor has the protocol changed
  EXPECT_EQ(say("hello 2").substr(0, 5), "*14\r\n");
  EXPECT_EQ(say("command info nosuch"), "*1\r\n*-1\r\n");
}

TEST_F(kv_resp, clients_are_told_of_the_server_and_of_each_other) {
  resp_session other(service_, "other:2");
  EXPECT_EQ(say("client id\nclient setname a\nclient setinfo lib-name x"), ":1\r\n+OK\r\n+OK\r\n");
  const std::string list = say("client list");
  EXPECT_NE(list.find("id=1 addr=there:1 name=a"), std::string::npos) << list;
  EXPECT_NE(list.find("id=2 addr=other:2 name= "), std::string::npos) << list;
  EXPECT_EQ(say("client setname a\x01"),
            "-ERR Client names cannot contain spaces, newlines or special characters.\r\n");
  const std::string info = say("info");
  for (const char* const part : {"redis_version:", "connected_clients:2", "total_commands_processed:"}) {
    EXPECT_NE(info.find(part), std::string::npos) << info;
  }
  EXPECT_EQ(say("info keyspace"), "$12\r\n# Keyspace\r\n\r\n");
  EXPECT_EQ(say("set a 1 ex 10\nset b 1 px 20001\nset c 1\ninfo keyspace\nflushall"),
            "+OK\r\n+OK\r\n+OK\r\n$48\r\n# Keyspace\r\ndb0:keys=3,expires=2,avg_ttl=15000\r\n\r\n+OK\r\n");
  EXPECT_EQ(say("select 0\nselect 16\nselect -1\nselect x\necho hi\nping hi\nping a b"),
            "+OK\r\n-ERR DB index is out of range\r\n-ERR DB index is out of range\r\n"
            "-ERR value is not an integer or out of range\r\n$2\r\nhi\r\n$2\r\nhi\r\n-ERR wrong number of arguments "
            "for 'ping' "
            "command\r\n");
  EXPECT_EQ(say("nosuch a\nget"),
            "-ERR unknown command 'nosuch', with args beginning with: 'a' \r\n"
            "-ERR wrong number of arguments for 'get' command\r\n");
  EXPECT_EQ(say("set a 1\nset b 1\ndbsize\nflushall\ndbsize\nget a"), "+OK\r\n+OK\r\n:2\r\n+OK\r\n:0\r\n$-1\r\n");
  EXPECT_EQ(say("command docs get nosuch").substr(0, 4), "*2\r\n");
  EXPECT_EQ(say("command count").substr(0, 1), ":");
}

TEST_F(kv_resp, clients_are_told_how_long_a_value_may_be_in_this_table) {
  const std::string longest = std::to_string(table_.longest_value());
  EXPECT_EQ(say("config get proto-max-bulk-len"),
            "*2\r\n$18\r\nproto-max-bulk-len\r\n$" + std::to_string(longest.size()) + "\r\n" + longest + "\r\n");
}

TEST_F(kv_resp, what_cannot_be_followed_ends_the_session_with_words) {
  const std::pair<std::string, std::string> wrong[] = {
      {"*1025\r\n", "invalid multibulk length"},
      {"*99999999999999999999\r\n", "invalid multibulk length"},
      {"*1x\r\n", "invalid multibulk length"},
      {"*1\rx", "invalid multibulk length"},
      {"*1111111111111111111111111", "invalid multibulk length"},
      {"*\r\n", "invalid multibulk length"},
      {"*01\r\n", "invalid multibulk length"},
      {"*-0\r\n", "invalid multibulk length"},
      {"*1\r\n$04\r\n", "invalid bulk length"},
      {"get \"a\r\n", "unbalanced quotes in request"},
      {"get 'a\r\n", "unbalanced quotes in request"},
      {"get \"a\\\"\r\n", "unbalanced quotes in request"},
      {"get \"a\"b\r\n", "unbalanced quotes in request"},
      {"*1\r\n!", "expected '$', got '!'"},
      {"*1\r\n*1\r\n", "expected '$', got '*'"},
      {"*1\r\n$-1\r\n", "invalid bulk length"},
      {"*1\r\n$2097153\r\n", "invalid bulk length"},
      {"*1\r\n$4294967296\r\n", "invalid bulk length"},
      {"*1\r\n$x\r\n", "invalid bulk length"},
      {"*2\r\n$2097000\r\n" + std::string(2'097'000, 'x') + "\r\n$1000\r\n", "the command is too long"},
      {"*1\r\n$4\r\nPINGPING", "a bulk string does not end where it should"},
      {std::string(65537, 'x'), "too big inline request"}};
  for (const auto& [words, why] : wrong) {
    for (const std::size_t piece : {words.size() / 100'000 + 1, std::size_t{1000}, words.size()}) {
      resp_session session(service_, "here");
      const heard all = say_to(session, words, piece);
      EXPECT_FALSE(all.goes_on) << words.substr(0, 50);
      EXPECT_EQ(all.answers, "-ERR Protocol error: " + why + "\r\n");
      EXPECT_EQ(session.fault(), why);
    }
  }
  std::string many;
  for (int i = 0; i < 1025; ++i) many += "a ";
  EXPECT_FALSE(say_anew(many + "\r\n", 100).goes_on);
}

// A page can have its reader's browser send anything to any port of his machine.
TEST_F(kv_resp, a_request_of_a_browser_ends_the_session_before_its_body_is_read) {
  for (const std::string_view head : {"POST / HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: 127.0.0.1:6379\r\n"}) {
    const std::string words = std::string(head) + "Accept: */*\r\n\r\nset browsed 1\r\n";
    EXPECT_FALSE(say_anew(words, words.size()).goes_on) << head;
  }
  value got;
  EXPECT_FALSE(get("browsed", got, now_));
}

TEST_F(kv_resp, an_error_is_one_line_whatever_the_client_has_said) {
  EXPECT_EQ(say_whole("*2\r\n$3\r\na\r\n\r\n$5\r\nb\r\n:1\r\n"),
            "-ERR unknown command 'a  ', with args beginning with: 'b  :1' \r\n");
}

TEST_F(kv_resp, commands_that_are_asked_for_most_allocate_nothing) {
  std::string words;
  for (int i = 0; i < 16; ++i) {
    words +=
        "*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000000\r\n$3\r\nxxx\r\n*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000000\r\n"
        "*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n*3\r\n$4\r\nMGET\r\n$1\r\nn\r\n$1\r\nm\r\nPING\r\n";
  }
  EXPECT_EQ(say("set n 1000"), "+OK\r\n");  // so that no round has longer answers than the first
  std::string answers;
  std::size_t before = 0;
  for (int round = 0; round < 100; ++round) {
    if (round == 1) before = test::allocations();  // from then on there is room for what comes
    answers.clear();
    const auto taken = lasting_.execute(words, answers);
    ASSERT_EQ(taken, words.size());
  }
  EXPECT_EQ(test::allocations(), before);
}

TEST(kv_resp_flush, one_of_a_large_table_and_many_of_a_small_one_let_others_have_their_turn) {
  for (const std::uint64_t buckets : {std::uint64_t{2}, std::uint64_t{5000}}) {
    std::vector<std::uint64_t> words_of = words_for(buckets);
    table data(std::as_writable_bytes(std::span(words_of)), buckets);
    resp_service service(data);
    resp_session flushing(service, "here");
    resp_session other(service, "there");
    std::string input;
    for (int i = 0; i < 10; ++i) input += "set a 1\r\nflushall\r\n";
    input += "get a\r\n";
    std::string answers;
    std::string heard;
    int turns = 0;
    for (std::size_t taken = 1; taken != 0 || flushing.wants_turn(); ++turns) {
      const auto count = flushing.execute(input, answers);
      ASSERT_TRUE(count);
      taken = *count;
      input.erase(0, taken);
      EXPECT_TRUE(other.execute("ping\r\n", heard));
    }
    std::string expected;
    for (int i = 0; i < 10; ++i) expected += "+OK\r\n+OK\r\n";
    EXPECT_EQ(answers, expected + "$-1\r\n");
    EXPECT_GE(turns, buckets == 2 ? 10 : 50);
  }
}

TEST(kv_resp_flush, others_find_nothing_of_what_is_being_removed_and_keep_what_they_set) {
  constexpr std::uint64_t buckets = 5000;
  std::vector<std::uint64_t> words_of = words_for(buckets);
  table data(std::as_writable_bytes(std::span(words_of)), buckets);
  resp_service service(data);
  resp_session other(service, "there");
  std::string answers;
  std::string setting;
  for (int i = 0; i < 100; ++i) setting += "set k" + std::to_string(i) + " 1000\r\n";
  ASSERT_TRUE(other.execute(setting, answers));
  {
    resp_session flushing(service, "here");
    std::string flushed;
    ASSERT_TRUE(flushing.execute("flushall\r\n", flushed));
    ASSERT_TRUE(flushing.wants_turn());
    for (int i = 0; i < 100; ++i) {
      const std::string key = "k" + std::to_string(i);
      std::string heard;
      ASSERT_TRUE(other.execute("expire " + key + " 1000\r\nget " + key + "\r\nincr " + key + "\r\n", heard));
      EXPECT_EQ(heard, ":0\r\n$-1\r\n:1\r\n") << key;
    }
    EXPECT_FALSE(data.find("nothing", 0));
  }  // the client goes in the middle, and what it has begun is done
  EXPECT_EQ(data.size(), 100U);
  std::string heard;
  ASSERT_TRUE(other.execute("get k7\r\n", heard));
  EXPECT_EQ(heard, "$1\r\n1\r\n");
}

TEST_F(kv_resp, answers_are_handed_over_before_they_grow_without_end) {
  std::string words;
  for (int i = 0; i < 10'000; ++i) words += "command\r\n";
  resp_session session(service_, "here");
  std::string answers;
  const auto taken = session.execute(words, answers);
  ASSERT_TRUE(taken);
  EXPECT_LT(*taken, words.size());
  EXPECT_GE(answers.size(), resp_session::enough_answers);
  EXPECT_LE(answers.size(), 2 * resp_session::enough_answers);
}

/// A client that asks the same again and again, and takes no answer before it is told to: a server's stream to it.
class silent_client {
 public:
  silent_client(std::string question, std::string answer, test::high_water& heap)
      : question_(std::move(question)), answer_(std::move(answer)), heap_(heap) {}

  task<std::size_t> read_some(std::span<std::byte> where) {
    heap_.look();
    if (said_ == repeats * question_.size()) {
      co_await leaves_.wait();
      co_return 0;
    }
    const std::string_view part = std::string_view(question_).substr(said_ % question_.size(), where.size());
    std::ranges::copy(std::as_bytes(std::span(part)), where.begin());
    said_ += part.size();
    co_return part.size();
  }
  task<> write(std::span<const std::byte> what) {
    heap_.look();
    co_await takes_.wait();
    std::string_view left(reinterpret_cast<const char*>(what.data()), what.size());
    while (!left.empty()) {
      const std::string_view part = std::string_view(answer_).substr(heard_ % answer_.size(), left.size());
      understood_ &= left.starts_with(part);
      heard_ += part.size();
      left.remove_prefix(part.size());
    }
  }
  [[nodiscard]] static std::string_view peer() noexcept { return "here:1"; }

  void take_answers() { takes_.set(); }
  /// Once it has said all.
  void leave() { leaves_.set(); }
  [[nodiscard]] bool has_all_answers() const noexcept { return understood_ && heard_ == repeats * answer_.size(); }

 private:
  static constexpr std::size_t repeats = 8;

  std::string question_;
  std::string answer_;
  test::high_water& heap_;
  std::size_t said_ = 0;
  std::size_t heard_ = 0;
  bool understood_ = true;
  event takes_;
  event leaves_;
};

class kv_resp_clients : public testing::Test {
 protected:
  void SetUp() override {
    const std::string text(longest_value, 'a');
    data_.set("a", text, {}, server_now());
    const std::string most = bulk(std::string(resp_session::longest_command - 100, 'e'));
    for (int i = 0; i < 4; ++i) {
      clients_.emplace_back("get a\r\n", bulk(text), heap_);
      clients_.emplace_back("mget a a\r\n", "*2\r\n" + bulk(text) + bulk(text), heap_);
      clients_.emplace_back("*2\r\n$4\r\necho\r\n" + most, most, heap_);
      clients_.emplace_back("get b\r\n", "$-1\r\n", heap_);
    }
    heap_ = {};
  }
  task<> serve(silent_client& client) {
    resp_conversation<silent_client> talk(client, service_);
    co_await talk.run();
  }
  void run(const std::function<task<>(scope&)>& body) {
    executor().run(with_timeout(std::chrono::seconds(60), with_scope(on_failure::stop_siblings, body)));
    EXPECT_EQ(service_.held(), 0u);
  }

  static constexpr std::uint64_t buckets = 8;
  static constexpr std::size_t room = std::size_t{4} << 20;
  static constexpr std::size_t little = std::size_t{256} << 10;  // what a session has parsed, and short buffers

  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>((buckets * bucket_bytes + 9 * longest_value) / 8);
  table data_{std::as_writable_bytes(std::span(words_)), buckets};
  resp_service service_{data_, server_now, room};
  std::deque<silent_client> clients_;
  test::high_water heap_;
};

TEST_F(kv_resp_clients, that_do_not_read_make_the_server_hold_no_more_than_it_says) {
  const std::size_t most = room + clients_.size() * resp_conversation<silent_client>::share;
  const std::size_t before = test::live_heap_bytes();
  run([&](scope& tasks) -> task<> {
    for (silent_client& each : clients_) tasks.spawn(serve(each));
    co_await test::settle();
    EXPECT_GE(service_.held(), room);
    EXPECT_LE(service_.held(), most);
    EXPECT_LE(test::live_heap_bytes() - before, service_.held() + clients_.size() * little);
    for (silent_client& each : clients_) each.take_answers();
    while (!std::ranges::all_of(clients_, &silent_client::has_all_answers)) co_await yield();
    co_await test::settle();
    EXPECT_LE(service_.held(), clients_.size() * little);
    for (silent_client& each : clients_) each.leave();
  });
  EXPECT_LE(heap_.added(), most);
}

TEST_F(kv_resp_clients, that_do_not_end_a_command_are_counted_with_it_and_it_takes_no_room_for_two) {
  silent_client slow("*2\r\n$4\r\necho\r\n$2000000\r\n" + std::string(200'000, 'e'), "", heap_);
  heap_ = {};
  run([&](scope& tasks) -> task<> {
    tasks.spawn(serve(slow));
    co_await test::settle();
    EXPECT_GE(service_.held(), 1'600'000u);
    slow.leave();
  });
  EXPECT_LE(heap_.added(), resp_session::longest_command + little);
}

TEST_F(kv_resp_clients, that_read_go_on_while_others_hold_all_that_there_is_room_for) {
  const std::size_t kinds = 4;
  run([&](scope& tasks) -> task<> {
    for (std::size_t i = kinds; i < clients_.size(); ++i) tasks.spawn(serve(clients_[i]));
    co_await test::settle();
    for (std::size_t i = 0; i < kinds; ++i) {
      EXPECT_GE(service_.held(), room);
      clients_[i].take_answers();
      clients_[i].leave();
      co_await serve(clients_[i]);
      EXPECT_TRUE(clients_[i].has_all_answers());
    }
    tasks.request_stop();
  });
}

TEST(kv_bench, values_tell_their_key_and_whether_they_are_whole) {
  for (const std::size_t bytes : {least_bench_value, std::size_t{64}, std::size_t{4099}}) {
    const std::string one = bench_value(7, {.server = 3, .number = 1}, bytes);
    ASSERT_EQ(one.size(), bytes);
    const auto which = version_in(one, 7);
    EXPECT_TRUE(which && which->server == 3 && which->number == 1);
    EXPECT_FALSE(version_in(one, 8).has_value());
    EXPECT_FALSE(version_in(std::string_view(one).substr(0, bytes - 1), 7).has_value());
    if (bytes == least_bench_value) continue;
    std::string mixed = one;
    mixed.replace(32, bytes, bench_value(7, {.server = 3, .number = 2}, bytes).substr(32));
    EXPECT_FALSE(version_in(mixed, 7).has_value());
  }
}

}  // namespace
}  // namespace kv
