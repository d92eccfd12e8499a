// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/remote_region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <limits>

namespace weft::mr {
namespace {

constexpr std::uint8_t wire_version = 1;

// Where the fields of the wire form stand.
constexpr std::size_t version_at = 0;
constexpr std::size_t zero_at = 1;
constexpr std::size_t usage_at = 2;
constexpr std::size_t key_at = 4;
constexpr std::size_t address_at = 8;
constexpr std::size_t length_at = 16;

template <class Number>
void store_le(std::byte* to, Number value) noexcept {
  for (std::size_t i = 0; i < sizeof(Number); ++i) to[i] = static_cast<std::byte>(std::uint64_t{value} >> 8 * i);
}

template <class Number>
Number load_le(const std::byte* from) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) value |= std::to_integer<std::uint64_t>(from[i]) << 8 * i;
  return static_cast<Number>(value);
}

bool wraps(std::uint64_t address, std::uint64_t size) noexcept {
  return size != 0 && size - 1 > std::numeric_limits<std::uint64_t>::max() - address;
}

[[noreturn]] void refuse(const std::string& why) { throw error(errc::malformed, "remote region: " + why); }

}  // namespace

remote_slice::remote_slice(std::uint32_t key, std::uint64_t address, std::uint64_t size, mr::usage purpose)
    : address_(address), size_(size), key_(key), usage_(purpose) {
  if (wraps(address, size)) {
    throw error(errc::out_of_range, fmt::format("remote memory of {} bytes at {:#x} wraps around", size, address));
  }
}

void remote_slice::require(mr::usage purpose, const char* operation) const {
  if (allows(purpose)) return;
  throw error(errc::access_denied, fmt::format("{}: the peer's memory is registered for {}, not for {}", operation,
                                               to_string(usage_), to_string(purpose)));
}

remote_slice remote_slice::slice(std::uint64_t offset, std::uint64_t length) const {
  detail::check_range(offset, length, size_);
  // The end of memory that reaches up to the last address has none itself; nothing is there, at whatever address.
  return {key_, address_ + offset, length, usage_};
}

remote_region::remote_region(std::uint32_t key, std::uint64_t address, std::uint64_t size, mr::usage purpose)
    : remote_slice(key, address, size, purpose) {
  if (size == 0) throw error(errc::zero_length, "remote region");
}

std::array<std::byte, remote_region::packed_bytes> remote_region::pack() const noexcept {
  std::array<std::byte, packed_bytes> wire{};
  store_le(&wire[version_at], wire_version);
  store_le(&wire[usage_at], bits(usage()));
  store_le(&wire[key_at], key());
  store_le(&wire[address_at], address());
  store_le(&wire[length_at], size());
  return wire;
}

remote_region remote_region::unpack(std::span<const std::byte> bytes) {
  if (bytes.size() < packed_bytes) refuse(fmt::format("{} bytes instead of {}", bytes.size(), packed_bytes));
  const std::byte* const wire = bytes.data();
  const auto version = load_le<std::uint8_t>(wire + version_at);
  if (version != wire_version) refuse(fmt::format("version {}, not {}", version, wire_version));
  if (wire[zero_at] != std::byte{0}) refuse("the reserved byte is not zero");
  const auto purpose = static_cast<mr::usage>(load_le<std::uint16_t>(wire + usage_at));
  if (const mr::usage unknown = purpose & ~known_usages; unknown != mr::usage::none) {
    refuse(fmt::format("unknown usage bits {:#x}", bits(unknown)));
  }
  const auto address = load_le<std::uint64_t>(wire + address_at);
  const auto length = load_le<std::uint64_t>(wire + length_at);
  if (length == 0) refuse("the length is zero");
  if (wraps(address, length)) refuse(fmt::format("{} bytes at {:#x} wrap around", length, address));
  return {load_le<std::uint32_t>(wire + key_at), address, length, purpose};
}

void detail::check_range(std::uint64_t offset, std::uint64_t length, std::uint64_t size) {
  if (offset <= size && length <= size - offset) return;
  throw error(errc::out_of_range, fmt::format("{} bytes at offset {} of memory of {} bytes", length, offset, size));
}

slice slice::subslice(std::size_t offset, std::size_t length) const {
  detail::check_range(offset, length, size_);
  mr::slice part = *this;
  part.data_ += offset;
  part.size_ = length;
  return part;
}

}  // namespace weft::mr
