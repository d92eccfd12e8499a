// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>

#include "kit/standard.hpp"
#include "kit/thrown.hpp"

// What operations fail with.
namespace weft::test {

/// The error that `operation` ends with; none if it succeeds.
template <class Operation>
task<std::optional<error>> failure_of(Operation operation) {
  try {
    static_cast<void>(co_await std::move(operation));
  } catch (const error& why) {
    co_return why;
  }
  co_return std::nullopt;
}

/// Its code; success if there is none.
template <class Operation>
task<std::error_code> code_of(Operation operation) {
  const std::optional<error> failure = co_await failure_of(std::move(operation));
  co_return failure ? failure->code() : std::error_code();
}

/// Its words, or those of another kind of exception; empty if there is none.
template <class Failure = error, class Operation>
task<std::string> words_of(Operation operation) {
  try {
    static_cast<void>(co_await std::move(operation));
  } catch (const Failure& why) {
    co_return why.what();
  }
  co_return std::string();
}

/// For messages of tests.
inline std::string words_of(const std::optional<error>& failure) { return failure ? failure->what() : "nothing"; }

inline bool contains(std::string_view text, std::string_view words) {
  return text.find(words) != std::string_view::npos;
}
inline bool contains(const std::optional<error>& failure, std::string_view words) {
  return failure && contains(std::string_view(failure->what()), words);
}

}  // namespace weft::test
