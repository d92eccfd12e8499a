// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <system_error>

#include <rpc/methods.hpp>

namespace rpc {
namespace {

constexpr std::size_t part_bytes = std::size_t{1} << 20;

std::int64_t parse_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) {
    throw std::invalid_argument(fmt::format("'{}' is not a number", text));
  }
  return value;
}

weft::task<std::string> echo(incoming_call& call) { co_return std::string(call.arguments()); }

weft::task<std::string> sum(incoming_call& call) {
  std::string_view rest = call.arguments();
  std::int64_t total = 0;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    if (__builtin_add_overflow(total, parse_number(rest.substr(0, end)), &total)) {
      throw std::out_of_range("the sum does not fit in 64 bits");
    }
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  co_return std::to_string(total);
}

weft::task<std::string> sleep(incoming_call& call) {
  co_await weft::sleep_for(std::chrono::milliseconds(parse_number(call.arguments())));
  co_return std::string(call.arguments());
}

weft::task<std::string> fetch(incoming_call& call) {
  const std::uint64_t bytes = parse_bytes(call.arguments());
  if (bytes > call.room()) {  // now, not after all of the room has been filled
    throw std::length_error(fmt::format("fetch {} bytes: the caller has room for {}", bytes, call.room()));
  }
  for (std::uint64_t done = 0; done < bytes;) {
    auto part = co_await call.pool().allocate(std::min<std::uint64_t>(part_bytes, bytes - done));
    fill_pattern(part.bytes(), done);
    done += part.size();
    co_await call.append(std::move(part));
  }
  co_return std::string();
}

weft::task<std::string> fail(incoming_call& call) {
  throw std::runtime_error(std::string(call.arguments()));
  co_return "";
}

std::uint64_t pattern_at(std::uint64_t offset) noexcept {
  const std::uint64_t word = (offset + 1) * 0x9e3779b97f4a7c15;
  return word ^ word >> 31;
}

}  // namespace

method_table standard_methods() {
  return {{"echo", echo}, {"sum", sum}, {"sleep", sleep}, {"fetch", fetch}, {"fail", fail}};
}

std::uint64_t parse_bytes(std::string_view text) {
  constexpr std::string_view units = "KMG";
  const std::size_t unit = text.empty() ? std::string_view::npos : units.find(text.back());
  const int shift = unit == std::string_view::npos ? 0 : 10 * (static_cast<int>(unit) + 1);
  const std::int64_t count = parse_number(shift == 0 ? text : text.substr(0, text.size() - 1));
  if (count < 1 || count > std::numeric_limits<std::int64_t>::max() >> shift) {
    throw std::invalid_argument(fmt::format("'{}' is not a size", text));
  }
  return static_cast<std::uint64_t>(count) << shift;
}

void fill_pattern(std::span<std::byte> part, std::uint64_t offset) noexcept {
  for (std::size_t i = 0; i < part.size(); i += 8) {
    const std::uint64_t word = pattern_at(offset + i);
    std::memcpy(part.data() + i, &word, std::min<std::size_t>(8, part.size() - i));
  }
}

bool is_pattern(std::span<const std::byte> part, std::uint64_t offset) noexcept {
  for (std::size_t i = 0; i < part.size(); i += 8) {
    const std::uint64_t word = pattern_at(offset + i);
    if (std::memcmp(part.data() + i, &word, std::min<std::size_t>(8, part.size() - i)) != 0) return false;
  }
  return true;
}

}  // namespace rpc
