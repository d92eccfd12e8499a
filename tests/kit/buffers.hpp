// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool.hpp>
#include <weft/runtime/task.hpp>

#include <algorithm>
#include <cstddef>

#include "kit/bytes.hpp"

namespace weft::test {

/// A buffer of the pool with fill(seed) in it.
[[nodiscard]] inline task<mr::buffer> filled(mr::pool& pool, std::size_t bytes, unsigned seed) {
  mr::buffer memory = co_await pool.allocate(bytes);
  fill(memory.bytes(), seed);
  co_return memory;
}

/// A buffer of the pool in which each byte is `value`.
[[nodiscard]] inline task<mr::buffer> filled_with(mr::pool& pool, std::size_t bytes, std::byte value) {
  mr::buffer memory = co_await pool.allocate(bytes);
  std::fill(memory.bytes().begin(), memory.bytes().end(), value);
  co_return memory;
}
[[nodiscard]] inline task<mr::buffer> zeroed(mr::pool& pool, std::size_t bytes) {
  return filled_with(pool, bytes, std::byte{0});
}

}  // namespace weft::test
