// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <cerrno>
#include <cstddef>
#include <span>

namespace weft::detail {

/// Fills `into` with bytes that nobody can guess. Throws the system's error. See getrandom(2).
inline void draw(system_calls& calls, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = calls.getrandom(into.data(), into.size(), 0);
    if (got < 0 && got != -EINTR) throw system_error(static_cast<int>(-got), "getrandom");
    if (got > 0) into = into.subspan(static_cast<std::size_t>(got));
  }
}

/// A number that nobody can guess.
template <class Number>
[[nodiscard]] Number draw(system_calls& calls) {
  Number drawn{};
  draw(calls, std::as_writable_bytes(std::span(&drawn, 1)));
  return drawn;
}

}  // namespace weft::detail
