// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>

namespace weft::net::shm {

/// What a call of system_calls has returned. Throws weft::error with `step` where that is an errno, negated.
inline int checked(int result, const char* step) {
  if (result < 0) throw system_error(-result, step);
  return result;
}

}  // namespace weft::net::shm
