// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::mr {

/// A file whose pages stand behind memory, so that another process can map them.
struct backing_file {
  int descriptor = -1;       ///< -1: there is none, and nobody can hand the memory to another process
  std::uint64_t offset = 0;  ///< of the first byte in the file
};

}  // namespace weft::mr
