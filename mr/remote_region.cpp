// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/remote_region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <limits>

namespace weft::mr {
namespace {

constexpr std::uint8_t wire_version = 2;

// Offsets of the fields in the wire form: in its head, then in each place.
constexpr std::size_t version_at = 0;
constexpr std::size_t count_at = 1;
constexpr std::size_t usage_at = 2;
constexpr std::size_t length_at = 4;
constexpr std::size_t head_bytes = 12;
constexpr std::size_t fabric_at = 0;
constexpr std::size_t key_bytes_at = 1;
constexpr std::size_t address_at = 2;
constexpr std::size_t key_at = 10;

constexpr std::uint16_t counter_bit = 0x8000;  // set in the usage if a counter follows the head

constexpr std::size_t small_number = sizeof(std::uint32_t);
constexpr std::size_t large_number = sizeof(std::uint64_t);

void store_le(std::byte* to, std::uint64_t value, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(value >> 8 * i);
}

std::uint64_t load_le(const std::byte* from, std::size_t bytes) noexcept {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value |= std::to_integer<std::uint64_t>(from[i]) << 8 * i;
  return value;
}

bool fits_small(std::uint64_t number) noexcept { return number <= std::numeric_limits<std::uint32_t>::max(); }

std::size_t bytes_of(std::uint64_t key) noexcept { return fits_small(key) ? small_number : large_number; }

bool wraps(std::uint64_t address, std::uint64_t size) noexcept {
  return size != 0 && size - 1 > std::numeric_limits<std::uint64_t>::max() - address;
}

[[noreturn]] void refuse(const std::string& why) { throw error(errc::malformed, "remote region: " + why); }

std::uint64_t unpack_key(std::span<const std::byte> bytes) {
  const std::uint64_t number = load_le(bytes.data(), bytes.size());
  if (bytes.size() == large_number && fits_small(number)) refuse("the value of an 8-byte key fits in 4 bytes");
  return number;
}

// Takes the counter off the front of `bytes`.
std::uint32_t unpack_counter(std::span<const std::byte>& bytes) {
  std::uint32_t number = 0;
  if (bytes.size() >= sizeof number) number = static_cast<std::uint32_t>(load_le(bytes.data(), sizeof number));
  if (number == 0) refuse("its counter number is missing or 0");
  bytes = bytes.subspan(sizeof number);
  return number;
}

// Takes one place off the front of `bytes`; `length` is that of the memory.
remote_place unpack_place(std::span<const std::byte>& bytes, std::uint64_t length) {
  if (bytes.size() < key_at) refuse("the descriptor is cut off in a fabric's entry");
  const auto key_bytes = std::to_integer<std::size_t>(bytes[key_bytes_at]);
  if (key_bytes != small_number && key_bytes != large_number) {
    refuse(fmt::format("a key of {} bytes is not possible: keys are numbers of 4 or 8 bytes", key_bytes));
  }
  if (bytes.size() - key_at < key_bytes) refuse("the descriptor is cut off in a key");
  remote_place place{.fabric = std::to_integer<std::uint8_t>(bytes[fabric_at]),
                     .address = load_le(&bytes[address_at], sizeof place.address)};
  if (wraps(place.address, length))
    refuse(fmt::format("memory of {} bytes at {:#x} wraps around", length, place.address));
  place.key = unpack_key(bytes.subspan(key_at, key_bytes));
  bytes = bytes.subspan(key_at + key_bytes);
  return place;
}

}  // namespace

remote_slice::remote_slice(std::uint64_t key, std::uint64_t address, std::uint64_t size, mr::usage purpose)
    : size_(size), usage_(purpose) {
  if (wraps(address, size)) {
    throw error(errc::out_of_range, fmt::format("make a remote slice: {} bytes at {:#x} wrap around", size, address));
  }
  places_[0].address = address;
  places_[0].key = key;
}

remote_slice::remote_slice(std::span<const remote_place> places, std::uint64_t size, mr::usage purpose)
    : size_(size), usage_(purpose), count_(static_cast<std::uint8_t>(places.size())) {
  if (places.empty() || places.size() > max_fabrics) {
    throw error(errc::invalid_argument,
                fmt::format("make a remote slice with {1} places: 1 to {0} are possible", max_fabrics, places.size()));
  }
  const auto is_behind = [](const remote_place& a, const remote_place& b) { return b.fabric <= a.fabric; };
  if (std::adjacent_find(places.begin(), places.end(), is_behind) != places.end()) {
    throw error(errc::invalid_argument, "make a remote slice: the places must be in the order of their fabrics");
  }
  for (const remote_place& each : places) {
    if (!wraps(each.address, size)) continue;
    throw error(errc::out_of_range,
                fmt::format("make a remote slice: {} bytes at {:#x} wrap around", size, each.address));
  }
  std::copy(places.begin(), places.end(), places_.begin());
}

void remote_slice::require(mr::usage purpose, const char* operation) const {
  if (allows(purpose)) return;
  throw error(errc::access_denied, fmt::format("{}: the peer's memory is registered for {}, not for {}", operation,
                                               to_string(usage_), to_string(purpose)));
}

remote_slice remote_slice::slice(std::uint64_t offset, std::uint64_t length) const {
  detail::check_range(offset, length, size_);
  remote_slice part = *this;
  part.size_ = length;
  // Memory may reach up to the last address. The address of an empty slice at its end then wraps around to 0.
  for (std::size_t i = 0; i < count_; ++i) part.places_[i].address += offset;
  return part;
}

remote_region::remote_region(std::uint64_t key, std::uint64_t address, std::uint64_t size, mr::usage purpose)
    : remote_slice(key, address, size, purpose) {
  if (size == 0) throw error(errc::zero_length, "remote region");
}

remote_region::remote_region(std::span<const remote_place> places, std::uint64_t size, mr::usage purpose)
    : remote_slice(places, size, purpose) {
  if (size == 0) throw error(errc::zero_length, "remote region");
}

std::size_t remote_region::packed_bytes() const noexcept {
  std::size_t bytes = head_bytes + (counter() != 0 ? sizeof counter() : 0);
  for (const remote_place& each : places()) bytes += key_at + bytes_of(each.key);
  return bytes;
}

packed_remote_region remote_region::pack() const noexcept {
  packed_remote_region wire;
  std::byte* to = wire.bytes_.data();
  to[version_at] = std::byte{wire_version};
  to[count_at] = static_cast<std::byte>(places().size());
  store_le(to + usage_at, bits(usage()) | (counter() != 0 ? counter_bit : 0), sizeof(std::uint16_t));
  store_le(to + length_at, size(), sizeof(std::uint64_t));
  to += head_bytes;
  if (counter() != 0) {
    store_le(to, counter(), sizeof counter());
    to += sizeof counter();
  }
  for (const remote_place& each : places()) {
    const std::size_t key_bytes = bytes_of(each.key);
    to[fabric_at] = std::byte{each.fabric};
    to[key_bytes_at] = static_cast<std::byte>(key_bytes);
    store_le(to + address_at, each.address, sizeof each.address);
    store_le(to + key_at, each.key, key_bytes);
    to += key_at + key_bytes;
  }
  wire.size_ = static_cast<std::size_t>(to - wire.bytes_.data());
  return wire;
}

remote_region remote_region::unpack(std::span<const std::byte> bytes) {
  if (bytes.size() < head_bytes) refuse(fmt::format("{} bytes instead of at least {}", bytes.size(), head_bytes));
  if (const std::byte version = bytes[version_at]; version != std::byte{wire_version}) {
    refuse(fmt::format("its format has version {}, this end reads version {}", std::to_integer<unsigned>(version),
                       wire_version));
  }
  const auto count = std::to_integer<std::size_t>(bytes[count_at]);
  if (count == 0 || count > max_fabrics)
    refuse(fmt::format("it names {} fabrics; 1 to {} are possible", count, max_fabrics));
  const std::uint64_t packed_usage = load_le(&bytes[usage_at], sizeof(std::uint16_t));
  const auto purpose = static_cast<mr::usage>(packed_usage & ~std::uint64_t{counter_bit});
  if (const mr::usage unknown = purpose & ~known_usages; unknown != mr::usage::none) {
    refuse(fmt::format("unknown usage bits {:#x}", bits(unknown)));
  }
  const std::uint64_t length = load_le(&bytes[length_at], sizeof length);
  if (length == 0) refuse("the length is zero");
  std::array<remote_place, max_fabrics> places;
  std::span<const std::byte> rest = bytes.subspan(head_bytes);
  const std::uint32_t number = (packed_usage & counter_bit) != 0 ? unpack_counter(rest) : 0;
  for (std::size_t i = 0; i < count; ++i) {
    places[i] = unpack_place(rest, length);
    if (i != 0 && places[i].fabric <= places[i - 1].fabric) refuse("the places are not in the order of their fabrics");
  }
  const std::span<const remote_place> there(places.data(), count);
  remote_region made(there, length, purpose);
  made.count_by(number);
  return made;
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
