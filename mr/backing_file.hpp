// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::mr {

/// The file behind some memory, by which another process can map it.
struct backing_file {
  int descriptor = -1;       ///< -1: no file, so other processes cannot map the memory
  std::uint64_t offset = 0;  ///< where the memory begins in the file
};

}  // namespace weft::mr
