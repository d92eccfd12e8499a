// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kit/failure.hpp"
#include "kit/test.hpp"

namespace weft::test {

/// For EXPECT_TRUE: the operation has failed with this code, and in its words are these.
template <class Code>
testing::AssertionResult failed_with(const std::optional<error>& failure, Code code, std::string_view words = {}) {
  if (failure && failure->code() == code && contains(failure, words)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "it has failed with " << words_of(failure);
}
/// The same, whatever the code.
inline testing::AssertionResult says(const std::optional<error>& failure, std::string_view words) {
  if (contains(failure, words)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "it has failed with " << words_of(failure);
}

}  // namespace weft::test
