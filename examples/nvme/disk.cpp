// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <nvme/disk.hpp>

namespace nvme {

weft::task<> disk::flush() { co_return; }

weft::task<> disk::zero(std::uint64_t offset, std::uint64_t bytes) {
  static constexpr std::array<std::byte, std::size_t{64} << 10> zeroes{};
  while (bytes > 0) {
    const std::uint64_t now = std::min<std::uint64_t>(bytes, zeroes.size());
    co_await write(offset, std::span(zeroes).first(now));
    offset += now;
    bytes -= now;
  }
}

weft::task<> disk::deallocate(std::uint64_t /*offset*/, std::uint64_t /*bytes*/) { co_return; }

weft::task<bool> disk::look_again() { co_return false; }

}  // namespace nvme
