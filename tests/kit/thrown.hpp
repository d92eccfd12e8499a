// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>

#include <optional>
#include <string>
#include <system_error>

// What functions throw.
namespace weft::test {

/// The error that the function `body` throws; none if it throws none.
template <class Body>
std::optional<error> failure_thrown_by(Body&& body) {
  try {
    static_cast<void>(body());
  } catch (const error& why) {
    return why;
  }
  return std::nullopt;
}

/// Its code; success if there is none.
template <class Body>
std::error_code code_thrown_by(Body&& body) {
  const std::optional<error> failure = failure_thrown_by(body);
  return failure ? failure->code() : std::error_code();
}

/// Its words, or those of another kind of exception; empty if there is none.
template <class Failure = error, class Body>
std::string words_thrown_by(Body&& body) {
  try {
    static_cast<void>(body());
  } catch (const Failure& why) {
    return why.what();
  }
  return "";
}

}  // namespace weft::test
