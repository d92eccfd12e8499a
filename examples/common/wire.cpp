// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>

#include <common/wire.hpp>

namespace common {

std::uint64_t reader::number(std::size_t width) {
  const auto field = bytes(width);
  std::uint64_t value = 0;
  for (std::size_t i = width; i-- > 0;) value = value << 8 | std::to_integer<std::uint64_t>(field[i]);
  return value;
}

std::uint64_t reader::number(std::size_t width, std::uint64_t most, std::string_view what) {
  const std::uint64_t value = number(width);
  if (value == 0 || value > most) malformed(fmt::format("{} {}: 1 to {} are possible", value, what, most));
  return value;
}

std::span<const std::byte> reader::bytes(std::size_t count) {
  if (count > rest_.size()) malformed("the message is cut short");
  const auto front = rest_.first(count);
  rest_ = rest_.subspan(count);
  return front;
}

weft::mr::remote_region reader::region() {
  const auto found = weft::mr::remote_region::unpack(rest_);
  static_cast<void>(bytes(found.packed_bytes()));
  return found;
}

std::string_view reader::text(std::size_t count) {
  const auto front = bytes(count);
  return {reinterpret_cast<const char*>(front.data()), front.size()};
}

std::string_view reader::last_text(std::size_t longest) {
  if (rest_.size() > longest) malformed("a text is too long");
  return text(rest_.size());
}

void reader::end() const {
  if (!rest_.empty()) malformed("the message is too long");
}

void reader::malformed(std::string_view why) const {
  throw weft::error(weft::errc::malformed, fmt::format("{}: {}", protocol_, why));
}

void writer::number(std::uint64_t value, std::size_t width) noexcept {
  assert(width <= into_.size() - size_);
  for (; width > 0; --width, value >>= 8) into_[size_++] = static_cast<std::byte>(value & 0xff);
}

void writer::bytes(std::span<const std::byte> what) noexcept {
  assert(what.size() <= into_.size() - size_);
  std::ranges::copy(what, into_.begin() + static_cast<std::ptrdiff_t>(size_));
  size_ += what.size();
}

void writer::text(std::string_view what) noexcept { bytes(std::as_bytes(std::span(what))); }

}  // namespace common
