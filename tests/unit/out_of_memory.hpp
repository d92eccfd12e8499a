// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kit/immovable.hpp"

namespace weft::test {

/// While one lives, this thread's operator new throws; not in sanitizer builds, nor in clang's. In
/// support.cpp.
class out_of_memory : private immovable {
 public:
  out_of_memory() noexcept;
  ~out_of_memory();
};

}  // namespace weft::test
