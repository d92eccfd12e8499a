// SPDX-License-Identifier: Apache-2.0
// What weft-perf is made of: its protocol, its units and its histogram.
#include "kit/test.hpp"
#include "kit/thrown.hpp"
#include <perf/histogram.hpp>
#include <perf/meter.hpp>
#include <perf/operations.hpp>
#include <perf/protocol.hpp>
#include <perf/receives.hpp>
#include <perf/units.hpp>

namespace perf {
namespace {

using namespace std::chrono_literals;
using weft::mr::usage;

order sample_order() {
  return {.what = role::take, .checksum = checking::on, .size = 4096, .depth = 64, .access = usage::write_dst};
}

template <class Bytes>
std::vector<std::byte> to_vector(const Bytes& bytes) {
  return {bytes.begin(), bytes.end()};
}

template <class Unpack>
void expect_malformed(const Unpack& unpack) {
  EXPECT_EQ(weft::test::code_thrown_by(unpack), weft::errc::malformed);
}

TEST(perf_protocol, an_order_arrives_as_it_was_given) {
  for (const checking checksum : {checking::usual, checking::off, checking::on, checking::late}) {
    for (const role what : {role::echo, role::take, role::wait}) {
      order given = sample_order();
      given.what = what;
      given.checksum = checksum;
      const order taken = order::unpack(given.pack());
      EXPECT_EQ(taken.what, what);
      EXPECT_EQ(taken.checksum, checksum);
      EXPECT_EQ(taken.size, 4096u);
      EXPECT_EQ(taken.depth, 64u);
      EXPECT_EQ(taken.access, usage::write_dst);
    }
  }
}

TEST(perf_protocol, an_order_of_any_other_length_is_refused) {
  auto bytes = to_vector(sample_order().pack());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    expect_malformed([&] { return order::unpack(std::span(bytes).first(length)); });
  }
  bytes.push_back(std::byte{0});
  expect_malformed([&] { return order::unpack(bytes); });
}

TEST(perf_protocol, an_order_for_the_impossible_is_refused) {
  const auto refuse = [](void (*spoil)(order&)) {
    order wanted = sample_order();
    spoil(wanted);
    expect_malformed([&] { return order::unpack(wanted.pack()); });
  };
  refuse([](order& wanted) { wanted.size = 0; });
  refuse([](order& wanted) { wanted.size = most_bytes + 1; });
  refuse([](order& wanted) { wanted.depth = 0; });
  refuse([](order& wanted) { wanted.depth = most_depth + 1; });
  refuse([](order& wanted) { wanted.what = static_cast<role>(0); });
  refuse([](order& wanted) { wanted.what = static_cast<role>(4); });
  refuse([](order& wanted) { wanted.access = usage::send; });
  refuse([](order& wanted) { wanted.access = static_cast<usage>(0x8000); });
}

TEST(perf_protocol, another_program_or_version_is_refused) {
  for (std::size_t i = 0; i < 10; ++i) {
    auto bytes = to_vector(sample_order().pack());
    bytes[i] ^= std::byte{1};
    expect_malformed([&] { return order::unpack(bytes); });
  }
  auto bytes = to_vector(sample_order().pack());
  bytes[11] = std::byte{4};
  expect_malformed([&] { return order::unpack(bytes); });
}

TEST(perf_protocol, a_hello_arrives_with_and_without_memory) {
  hello given{.polling = weft::poll_policy::spin, .memory = {}};
  EXPECT_FALSE(hello::unpack(given.pack()).memory);
  given.memory.emplace(7u, 64u, 4096u, usage::write_dst);
  const hello taken = hello::unpack(given.pack());
  EXPECT_EQ(taken.polling, weft::poll_policy::spin);
  ASSERT_TRUE(taken.memory);
  EXPECT_EQ(*taken.memory, *given.memory);
}

TEST(perf_protocol, a_hello_with_anything_wrong_is_refused) {
  const auto good = to_vector(hello().pack());
  expect_malformed([&] { return hello::unpack(std::span(good).first(good.size() - 1)); });
  for (std::size_t i = 0; i < good.size(); ++i) {
    auto bytes = good;
    bytes[i] = std::byte{9};
    expect_malformed([&] { return hello::unpack(bytes); });
  }
}

TEST(perf_protocol, a_mark_never_has_the_size_of_the_messages) {
  for (std::uint32_t size = 1; size < 100; ++size) {
    std::vector<std::byte> bytes(mark::bytes_beside(size));
    ASSERT_NE(bytes.size(), size);
    mark::pack(bytes);
    EXPECT_NO_THROW(mark::check(bytes));
  }
}

TEST(perf_protocol, a_message_of_another_size_is_no_mark) {
  std::vector<std::byte> bytes(mark::most_packed_bytes);
  mark::pack(bytes);
  for (std::size_t length = 0; length < 8; ++length) {
    expect_malformed([&] { mark::check(std::span(bytes).first(length)); });
  }
  for (std::byte& value : bytes) {
    value ^= std::byte{1};
    expect_malformed([&] { mark::check(bytes); });
    value ^= std::byte{1};
  }
}

TEST(perf_protocol, a_count_arrives_and_nothing_else_is_one) {
  const auto bytes = count{.messages = 0x0123456789abcdef}.pack();
  EXPECT_EQ(count::unpack(bytes).messages, 0x0123456789abcdefu);
  expect_malformed([&] { return count::unpack(std::span(bytes).first(7)); });
}

TEST(perf_units, sizes_are_lists_and_ranges) {
  EXPECT_EQ(parse_sizes("64"), std::vector<std::uint32_t>({64}));
  EXPECT_EQ(parse_sizes("64,4K,1M"), std::vector<std::uint32_t>({64, 4096, 1 << 20}));
  EXPECT_EQ(parse_sizes("1-8,3"), std::vector<std::uint32_t>({1, 2, 4, 8, 3}));
  EXPECT_EQ(parse_sizes("all").size(), 23u);
  EXPECT_EQ(parse_size("1G"), most_bytes);
}

TEST(perf_units, what_is_no_size_is_refused) {
  for (const char* text : {"", "0", "-1", "64k", "64KB", "x", "2G", "1025M", "99999999999999999999", "1,", ",1", "1-",
                           "-", "8-4", "1-2-3", " 1", "1 "}) {
    EXPECT_THROW(static_cast<void>(parse_sizes(text)), std::invalid_argument) << text;
  }
}

TEST(perf_units, figures_have_three_digits) {
  EXPECT_EQ(format_size(64), "64");
  EXPECT_EQ(format_size(4096), "4K");
  EXPECT_EQ(format_size(1000), "1000");
  EXPECT_EQ(format_size(std::uint64_t{3} << 20), "3M");
  EXPECT_EQ(format_figure(0), "0");
  EXPECT_EQ(format_figure(0.05123), "0.0512");
  EXPECT_EQ(format_figure(3.0712), "3.07");
  EXPECT_EQ(format_figure(123456.7), "123457");
}

TEST(perf_histogram, percentiles_are_right_to_half_a_percent) {
  histogram times;
  for (int i = 1; i <= 10'000; ++i) times.record(i * 1us);
  EXPECT_EQ(times.count(), 10'000u);
  EXPECT_EQ(times.min(), 1e3);
  EXPECT_EQ(times.max(), 1e7);
  EXPECT_NEAR(times.percentile(50), 5.0e6, 0.005 * 5.0e6);
  EXPECT_NEAR(times.percentile(90), 9.0e6, 0.005 * 9.0e6);
  EXPECT_NEAR(times.percentile(99.9), 9.99e6, 0.005 * 9.99e6);
}

TEST(perf_histogram, one_value_is_every_percentile) {
  histogram times;
  times.record(1234ns);
  for (const double percent : {0.1, 50.0, 99.9, 100.0}) EXPECT_EQ(times.percentile(percent), 1234);
}

TEST(perf_histogram, what_is_out_of_its_range_still_counts) {
  histogram times;
  times.record(0ns);
  times.record(2000s);
  EXPECT_EQ(times.count(), 2u);
  EXPECT_EQ(times.min(), 0);
  EXPECT_EQ(times.percentile(100), 2e12);
}

TEST(perf_meter, keeps_the_longest_time_in_which_no_operation_was_done) {
  const weft::time_point start{};
  meter counts({}, start);
  counts.record(start, start + 3ms);
  counts.record(start + 1ms, start + 9ms);
  counts.record(start + 2ms, start + 10ms);
  EXPECT_EQ(counts.longest_pause(), 6ms);
}

TEST(perf_meter, hands_out_what_the_budget_says) {
  const weft::time_point start{};
  meter of_operations({.operations = 2}, start);
  EXPECT_TRUE(of_operations.claim(start));
  EXPECT_TRUE(of_operations.claim(start + 1h));
  EXPECT_FALSE(of_operations.claim(start + 1h));
  EXPECT_EQ(of_operations.done(), 1.0);
  meter of_time({.time = 10s}, start);
  EXPECT_TRUE(of_time.claim(start + 5s));
  EXPECT_DOUBLE_EQ(of_time.done(), 0.5);
  EXPECT_FALSE(of_time.claim(start + 10s));
}

TEST(perf_operations, every_row_of_the_table_is_complete) {
  for (const operation& one : all_operations()) {
    EXPECT_EQ(find_operation(one.name), &one);
    for (const procedure* how : {&one.latency, &one.bandwidth}) {
      EXPECT_NE(how->run, nullptr) << one.name;
      EXPECT_FALSE(how->meaning.empty()) << one.name;
      EXPECT_GE(how->trips, 1u) << one.name;
    }
  }
  EXPECT_EQ(find_operation("teleport"), nullptr);
}

TEST(perf_receives, the_memory_for_receives_is_bounded) {
  EXPECT_EQ(receives_at_depth(64, 64), 128);
  EXPECT_EQ(receives_at_depth(1, 64), 16);
  EXPECT_EQ(receives_at_depth(64, 1 << 20), 64);
  EXPECT_EQ(receives_at_depth(most_depth, most_bytes), 2);
}

}  // namespace
}  // namespace perf
