// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>

namespace weft::net {

/// Returns the result of a call of system_calls or rdma_calls. Throws weft::error with `step` if it is -errno.
inline int checked(int result, const char* step) {
  if (result < 0) throw system_error(-result, step);
  return result;
}

}  // namespace weft::net
