// SPDX-License-Identifier: Apache-2.0
// What the tests of shared memory and the process they share it with say to each other.
#pragma once

#include <weft/mr/device_memory.hpp>

#include "kit/standard.hpp"

namespace weft::test {

/// From the test, by standard input. The process answers with as many bytes, copies each of them back with all bits
/// inverted, and ends with 0. It ends with 1 after words on standard error; any other code is a defect.
struct share_order {
  int device = 0;
  mr::device_share shared;
  std::size_t bytes = 0;
  std::uint64_t fail_nth = 0;  ///< call of the driver, from the opening on
};

}  // namespace weft::test
