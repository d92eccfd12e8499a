// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

namespace common {

/// One thing that was asked for could not be done, in words. The connection is as good as before: what breaks it is a
/// weft::error.
class failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace common
