// SPDX-License-Identifier: Apache-2.0
// What kv is made of: its table, as its server writes it and as peers read it meanwhile, and its protocols.
#include <weft/runtime/error.hpp>
#include <weft/weft.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <kv/bench.hpp>
#include <kv/clock.hpp>
#include <kv/protocol.hpp>
#include <kv/table.hpp>

namespace kv {
namespace {

using namespace weft;

class kv_table : public testing::Test {
 protected:
  static constexpr std::uint64_t buckets = 64;

  [[nodiscard]] std::span<std::byte> memory() { return std::as_writable_bytes(std::span(words_)); }
  [[nodiscard]] std::span<std::byte, bucket_bytes> bucket(std::uint64_t number) {
    return memory().subspan(number * bucket_bytes).first<bucket_bytes>();
  }
  /// What a client makes of the memory.
  outcome look(std::string_view key, value& into, moment now) {
    const places where = places_of(key, buckets);
    const outcome first = find_in(bucket(where.first), where.first, key, into, now);
    return first == outcome::absent ? find_in(bucket(where.second), where.second, key, into, now) : first;
  }

  static inline moment now_ = 1'800'000'000'000;

  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(buckets * bucket_bytes / 8);
  table table_{memory()};
};

TEST_F(kv_table, server_and_client_find_what_was_set_last) {
  value got;
  EXPECT_FALSE(table_.get("a", got, now_));
  EXPECT_EQ(look("a", got, now_), outcome::absent);
  for (const std::string_view bytes : {"first", "", "a longer one than the first"}) {
    table_.set("a", bytes, {}, now_);
    EXPECT_TRUE(table_.get("a", got, now_));
    EXPECT_EQ(got.view(), bytes);
    EXPECT_EQ(look("a", got, now_), outcome::found);
    EXPECT_EQ(got.view(), bytes);
  }
  table_.set(std::string(longest_key, 'k'), std::string(longest_value, 'v'), {}, now_);
  EXPECT_EQ(look(std::string(longest_key, 'k'), got, now_), outcome::found);
  EXPECT_EQ(got.view(), std::string(longest_value, 'v'));
}

TEST_F(kv_table, half_full_it_keeps_all_keys_and_overfull_it_keeps_the_newest) {
  constexpr std::uint64_t half = buckets * slots_in_bucket / 2;
  value got;
  for (std::uint64_t i = 0; i < half; ++i) table_.set(bench_key(i), bench_value(i, 0).view(), {}, now_);
  for (std::uint64_t i = 0; i < half; ++i) {
    EXPECT_EQ(look(bench_key(i), got, now_), outcome::found) << i;
    EXPECT_TRUE(is_whole(got.view(), i));
  }
  for (std::uint64_t i = half; i < 10 * half; ++i) {
    table_.set(bench_key(i), bench_value(i, 1).view(), {}, now_);
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
  table_.set("key", std::string(longest_value, 'x'), {}, now_);
  const auto before = read(where.first);
  table_.set("key", std::string(longest_value, 'y'), {}, now_);
  const auto after = read(where.first);
  ASSERT_NE(before, after);
  // A read may stop seeing the old bytes and begin to see the new ones anywhere, and the other way round.
  for (std::size_t cut = 0; cut <= slot_bytes; ++cut) {
    for (const auto& [head, tail] : {std::pair(&before, &after), std::pair(&after, &before)}) {
      auto torn = *tail;
      std::copy_n(head->begin(), cut, torn.begin());
      value got;
      const outcome result = find_in(torn, where.first, "key", got, now_);
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
    EXPECT_NE(find_in(bytes, 0, "key", got, now_), outcome::found);
  }
  // An entry of another bucket is none of this one's.
  table_.set("key", "value", {}, now_);
  const places where = places_of("key", buckets);
  value got;
  EXPECT_EQ(find_in(bucket(where.first), where.first + 1, "key", got, now_), outcome::torn);
}

// One executor answers reads while another thread writes. Whatever was torn on the way is read again.
TEST(kv_reads, while_another_thread_writes_never_yield_a_torn_value) {
  constexpr std::uint64_t keys = 8;
  constexpr std::uint64_t buckets = 2;
  constexpr int enough = 3000;
  const moment now_ = server_now();
  auto device = net::device::open("iwarp");
  const auto body = [&]() -> task<> {
    std::vector<std::uint64_t> zeroed(buckets * bucket_bytes / 8);
    auto region = co_await device.domain().register_memory(std::move(zeroed), {.usage = mr::usage::read_src});
    table data(region.bytes());
    for (std::uint64_t i = 0; i < keys; ++i) data.set(bench_key(i), bench_value(i, 0).view(), {}, now_);
    std::atomic<bool> over = false;
    std::thread writer([&] {
      for (std::uint64_t version = 1; !over; ++version) {
        data.set(bench_key(version % keys), bench_value(version % keys, version).view(), {}, now_);
      }
    });
    auto listener = co_await device.listen("127.0.0.1:0");
    const auto accept = [&]() -> task<net::connection> {
      auto request = co_await listener.next();
      co_return co_await request->accept();
    };
    auto both = co_await when_all(device.connect(std::string(listener.address())), accept());
    auto& reader = std::get<0>(both);
    const auto memory = region.remote();
    auto room = co_await device.pool().allocate(bucket_bytes);
    int found = 0;
    for (int i = 0; i < 100 * enough && found < enough; ++i) {
      const std::uint64_t index = static_cast<std::uint64_t>(i) % keys;
      const places where = places_of(bench_key(index), buckets);
      for (const std::uint64_t number : {where.first, where.second}) {
        co_await reader.read(room, memory.slice(number * bucket_bytes, bucket_bytes));
        value got;
        if (find_in(room.bytes().first<bucket_bytes>(), number, bench_key(index), got, now_) != outcome::found)
          continue;
        EXPECT_TRUE(is_whole(got.view(), index));
        ++found;
        break;  // both may be the same bucket
      }
    }
    over = true;
    writer.join();
    EXPECT_EQ(found, enough);
    co_await reader.close();
  };
  executor().run(body());
}

TEST(kv_protocol, requests_arrive_as_they_were_made_and_no_others) {
  std::array<std::byte, message_bytes> room{};
  const std::span<const std::byte> bytes(room);
  const std::string key(longest_key, 'k');
  const std::string words(longest_value, 'v');
  for (const set_request& what : {set_request{.key = key, .bytes = words}, set_request{.key = "a", .bytes = ""}}) {
    const std::size_t size = pack(what, room);
    const auto taken = unpack_set(bytes.first(size));
    ASSERT_TRUE(taken);
    EXPECT_EQ(taken->key, what.key);
    EXPECT_EQ(taken->bytes, what.bytes);
  }
  const std::string_view wrong[] = {"", std::string_view("\0abc", 4), "\x05key", "\x04k yz", "\x03k\ny", "\xff"};
  for (const std::string_view text : wrong) {
    EXPECT_FALSE(unpack_set(std::as_bytes(std::span(text)))) << text;
  }
  const std::string large = "\x01k" + std::string(longest_value + 1, 'v');
  EXPECT_FALSE(unpack_set(std::as_bytes(std::span(large))));
}

TEST(kv_protocol, a_hello_that_is_no_tables_is_refused) {
  std::array<std::byte, message_bytes> room{};
  const auto unpack = [&](std::uint64_t size, mr::usage usage) {
    const mr::remote_region memory(7, 4096, size, usage);
    return unpack_hello(std::span(room).first(pack(hello{.memory = memory, .now = 5}, room)));
  };
  EXPECT_EQ(unpack(3 * bucket_bytes, mr::usage::read_src).memory.size(), 3 * bucket_bytes);
  EXPECT_EQ(unpack(3 * bucket_bytes, mr::usage::read_src).now, 5u);
  EXPECT_THROW(static_cast<void>(unpack(3 * bucket_bytes + 1, mr::usage::read_src)), error);
  EXPECT_THROW(static_cast<void>(unpack(3 * bucket_bytes, mr::usage::write_dst)), error);
  EXPECT_THROW(static_cast<void>(unpack(bucket_bytes << 33, mr::usage::read_src)), error);
  EXPECT_THROW(static_cast<void>(unpack_hello({})), error);
}

class kv_text : public kv_table {
 protected:
  struct heard {
    std::string answers;
    std::size_t left = 0;
    bool understood = true;
  };
  static moment clock() noexcept { return now_; }

  /// What a session says to words that come in pieces of so many bytes.
  heard say(std::string_view words, std::size_t piece) {
    text_session session(table_, clock);
    heard all;
    std::string input;
    while (!words.empty() && all.understood) {
      input += words.substr(0, piece);
      words.remove_prefix(std::min(piece, words.size()));
      const auto taken = session.execute(input, all.answers);
      all.understood = taken.has_value();
      input.erase(0, taken.value_or(0));
      EXPECT_LE(input.size(), text_session::longest_command + longest_value + 2);
    }
    all.left = input.size();
    return all;
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
                    {"99999999999", moment{UINT32_MAX} * 1000 - 1}};
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
  const std::string_view wrong[] = {"set a x 0 0\r\n\r\n",
                                    "set a -1 0 0\r\n\r\n",
                                    "set a 4294967296 0 0\r\n\r\n",
                                    "set a 0 soon 0\r\n\r\n",
                                    "set a 0 0 x\r\n",
                                    "set a 0 0 65\r\n",
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
      EXPECT_FALSE(all.understood) << words;
      EXPECT_NE(all.answers.find("ERROR"), std::string::npos) << words;
    }
  }
  const heard endless = say(std::string(100'000, 'x'), 10);
  EXPECT_FALSE(endless.understood);
}

TEST_F(kv_table, keys_that_are_removed_are_gone_for_the_server_and_for_clients_and_leave_room) {
  value got;
  for (std::uint64_t i = 0; i < 10 * buckets * slots_in_bucket; ++i) {
    table_.set(bench_key(i), "x", {}, now_);
    ASSERT_EQ(look(bench_key(i), got, now_), outcome::found);
    EXPECT_EQ(table_.size(), 1u);
    table::entry(table_, bench_key(i), now_).erase();
    ASSERT_EQ(look(bench_key(i), got, now_), outcome::absent);
    EXPECT_EQ(table_.size(), 0u);
  }
  table_.set("a", "1", {}, now_);
  table_.set("b", "2", {}, now_);
  table_.clear();
  EXPECT_EQ(table_.size(), 0u);
  EXPECT_FALSE(table_.get("a", got, now_));
  EXPECT_EQ(look("b", got, now_), outcome::absent);
}

TEST_F(kv_table, values_that_have_expired_make_room_before_those_that_have_not) {
  const std::uint64_t all = buckets * slots_in_bucket;
  for (std::uint64_t i = 0; i < 4 * all; ++i) table_.set(bench_key(i), "old", {.expires = now_ + 1}, now_);
  const moment later = now_ + 1;
  value got;
  const std::uint64_t few = all / 4;
  for (std::uint64_t i = 0; i < few; ++i) table_.set(bench_key(i), "new", {}, later);
  for (std::uint64_t i = 0; i < few; ++i) EXPECT_TRUE(table_.get(bench_key(i), got, later)) << i;
}

TEST_F(kv_table, a_key_of_no_bytes_is_nowhere) {
  value got;
  EXPECT_FALSE(table_.get("", got, now_));
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

TEST(kv_bench, values_tell_their_key_and_whether_they_are_whole) {
  const value one = bench_value(7, 1);
  EXPECT_TRUE(is_whole(one.view(), 7));
  EXPECT_FALSE(is_whole(one.view(), 8));
  std::string mixed(one.view());
  mixed.replace(32, 32, bench_value(7, 2).view().substr(32));
  EXPECT_FALSE(is_whole(mixed, 7));
}

}  // namespace
}  // namespace kv
