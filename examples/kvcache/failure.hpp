// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace kvcache {

/// What went wrong with a sequence or a measurement, in words. What breaks a connection is a weft::error.
class failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace kvcache
