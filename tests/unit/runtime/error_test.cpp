// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/result.hpp>

#include <set>

#include "runtime/support.hpp"

namespace weft {
namespace {

TEST(error, every_code_has_words_of_its_own) {
  std::set<std::string> words;
  const int last = static_cast<int>(errc::outcome_unknown);
  for (int value = 1; value <= last; ++value) words.insert(make_error_code(static_cast<errc>(value)).message());
  EXPECT_EQ(words.size(), static_cast<std::size_t>(last));
  EXPECT_EQ(words.count("unknown error"), 0U);
  EXPECT_EQ(make_error_code(static_cast<errc>(last + 1)).message(), "unknown error");
}

TEST(error, is_a_sentence_and_an_error_of_the_standard_library) {
  const error failure(errc::timed_out, "connect to 10.0.0.7:7471");
  EXPECT_STREQ(failure.what(), "connect to 10.0.0.7:7471: timed out");
  EXPECT_EQ(failure.code(), errc::timed_out);
  EXPECT_EQ(failure.code(), std::errc::timed_out);
  EXPECT_EQ(system_error(ECONNREFUSED, "connect").code(), std::errc::connection_refused);
}

TEST(error, keeps_its_words_and_whether_it_was_posted_under_another_code) {
  const error failure = error(errc::canceled, "write to 10.0.0.7:7471").as_posted().with_code(errc::timed_out);
  EXPECT_STREQ(failure.what(), "write to 10.0.0.7:7471: timed out");
  EXPECT_TRUE(failure.posted());
  EXPECT_STREQ(error(errc::canceled).with_code(errc::timed_out).what(), "timed out");
  EXPECT_FALSE(error(errc::canceled).with_code(errc::timed_out).posted());
}

TEST(result, holds_a_value_or_an_error) {
  result<std::unique_ptr<int>> good(std::make_unique<int>(7));
  ASSERT_TRUE(good);
  EXPECT_EQ(**good, 7);
  EXPECT_EQ(*std::move(good).value(), 7);
  const result<int> bad(error(errc::closed, "receive"));
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), errc::closed);
  EXPECT_THROW(static_cast<void>(bad.value()), error);
  EXPECT_NO_THROW(result<void>().value());
  EXPECT_THROW(result<void>(error(errc::closed)).value(), error);
}

TEST(as_result, turns_a_weft_error_into_a_value_and_lets_other_exceptions_through) {
  const auto fail = []() -> task<int> {
    throw error(errc::closed, "receive");
    co_return 0;
  };
  const auto root = [&]() -> task<> {
    const result<int> good = co_await as_result(test::number_after(0, 7));
    EXPECT_EQ(*good, 7);
    const result<int> bad = co_await as_result(fail());
    EXPECT_EQ(bad.error().code(), errc::closed);
    const result<void> slept = co_await as_result(sleep_for(duration::zero()));
    EXPECT_TRUE(slept);
    static_cast<void>(co_await as_result(test::fail_after(0)));
  };
  EXPECT_THROW(test::run(root()), std::runtime_error);
}

}  // namespace
}  // namespace weft
