// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/error.hpp>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

// Fields of NVMe's structures: little-endian numbers and padded texts, at offsets in bytes.
namespace nvme {

[[noreturn]] inline void malformed(const std::string& what) { throw weft::error(weft::errc::malformed, what); }

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

/// The number at `offset`. Throws errc::malformed rather than read beyond the bytes.
template <std::unsigned_integral Number>
[[nodiscard]] Number load(std::span<const std::byte> bytes, std::size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(Number)) malformed("an NVMe structure that is cut short");
  Number value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Stores `value` at `offset`. Throws errc::out_of_range rather than write beyond the bytes.
template <std::unsigned_integral Number>
void store(std::span<std::byte> bytes, std::size_t offset, std::type_identity_t<Number> value) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(Number))
    throw weft::error(weft::errc::out_of_range, "an NVMe structure has no such field");
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

/// A text of a fixed width that zero bytes end, such as an NVMe qualified name. Empty if no zero byte ends it.
[[nodiscard]] inline std::optional<std::string> load_terminated(std::span<const std::byte> field) {
  const auto end = std::ranges::find(field, std::byte{0});
  if (end == field.end()) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(field.data()), static_cast<std::size_t>(end - field.begin()));
}

/// Stores `text` in a field that zero bytes end. Throws errc::out_of_range if it does not fit.
inline void store_terminated(std::span<std::byte> field, std::string_view text) {
  if (text.size() >= field.size()) throw weft::error(weft::errc::out_of_range, "a text is longer than its NVMe field");
  std::ranges::fill(field, std::byte{0});
  std::ranges::copy(std::as_bytes(std::span(text)), field.begin());
}

/// A text of a fixed width that blanks fill up, such as a serial number, without these and without zero bytes.
[[nodiscard]] inline std::string load_padded(std::span<const std::byte> field) {
  std::string text(reinterpret_cast<const char*>(field.data()), field.size());
  if (const auto zero = text.find('\0'); zero != std::string::npos) text.resize(zero);
  const auto last = text.find_last_not_of(' ');
  text.resize(last == std::string::npos ? 0 : last + 1);
  return text;
}

/// Stores `text` and fills the rest with blanks. A text that is too long is cut.
inline void store_padded(std::span<std::byte> field, std::string_view text) {
  std::ranges::fill(field, std::byte{' '});
  std::ranges::copy(std::as_bytes(std::span(text.substr(0, field.size()))), field.begin());
}

}  // namespace nvme
