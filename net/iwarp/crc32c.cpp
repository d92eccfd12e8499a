// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/crc32c.hpp>

#include <isa-l/crc.h>

namespace weft::net::iwarp {
namespace {
// crc32_iscsi() takes the length as an int.
constexpr std::size_t longest_run = std::size_t{1} << 30;
}  // namespace

// crc32_iscsi() inverts neither its argument nor its result. It does not change the buffer, although its parameter is
// not const.
void crc32c::add(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const auto run = bytes.first(bytes.size() < longest_run ? bytes.size() : longest_run);
    auto* const start = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(run.data()));
    state_ = crc32_iscsi(start, static_cast<int>(run.size()), state_);
    bytes = bytes.subspan(run.size());
  }
}

std::uint32_t crc32c_of(std::span<const std::byte> bytes) noexcept {
  crc32c crc;
  crc.add(bytes);
  return crc.value();
}

}  // namespace weft::net::iwarp
