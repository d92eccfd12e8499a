// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <iterator>

#include <kv/protocol.hpp>

namespace kv {
namespace {

std::string_view text_of(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// "a  b c" is a, b, c; the rest of the places stays empty. False if there are more words than places.
template <std::size_t Count>
bool split(std::string_view line, std::array<std::string_view, Count>& words) noexcept {
  std::size_t count = 0;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    if (end != 0) {
      if (count == Count) return false;
      words[count++] = line.substr(0, end);
    }
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return true;
}

// A whole number, and nothing else.
template <class Number>
bool parse(std::string_view word, Number& into) noexcept {
  const auto [stop, failure] = std::from_chars(word.data(), word.data() + word.size(), into);
  return failure == std::errc() && stop == word.data() + word.size();
}

// From when on a value is gone, of what a client of the text protocol asks for.
moment expires_at(std::int64_t expiry, moment now) noexcept {
  constexpr std::int64_t longest_relative = std::int64_t{30} * 24 * 60 * 60;
  constexpr moment long_ago = 1;
  constexpr moment latest_second = latest_moment / 1000;
  if (expiry == 0) return 0;
  if (expiry < 0) return long_ago;
  const auto seconds = static_cast<moment>(expiry);
  if (expiry <= longest_relative) return std::min(now + seconds * 1000, latest_moment);
  return std::min(seconds, latest_second) * 1000;
}

}  // namespace

std::size_t pack(const hello& what, std::span<std::byte> into) noexcept {
  const auto packed = what.memory.pack();
  std::copy(packed.begin(), packed.end(), into.begin());
  const std::array<std::uint64_t, 3> beside{what.buckets, what.longest_value, what.server};
  std::memcpy(into.data() + packed.size(), beside.data(), sizeof beside);
  const std::size_t taken = packed.size() + sizeof beside;
  return taken + pack(what.now, into.subspan(taken));
}

hello unpack_hello(std::span<const std::byte> message) {
  std::array<std::uint64_t, 3> beside{};
  constexpr std::size_t behind = sizeof beside + sizeof(moment);
  if (message.size() < behind) throw weft::error(weft::errc::malformed, "the server's first words are too few");
  const auto memory = weft::mr::remote_region::unpack(message.first(message.size() - behind));
  std::memcpy(beside.data(), message.last(behind).data(), sizeof beside);
  const auto [buckets, longest, server] = beside;
  if (buckets == 0 || buckets > UINT32_MAX || buckets * bucket_bytes > memory.size()) {
    throw weft::error(weft::errc::malformed, "the server's memory is not a table");
  }
  if (longest > longest_value) throw weft::error(weft::errc::malformed, "the server's limit of a value is not valid");
  memory.require(weft::mr::usage::read_src, "get");
  const std::optional<moment> now = unpack_answer(message.last(sizeof(moment)));
  if (!now) throw weft::error(weft::errc::malformed, "the server's clock is not valid");
  return {.memory = memory, .buckets = buckets, .longest_value = longest, .server = server, .now = *now};
}

// In the byte order of x86-64, like the table.
std::size_t pack(moment now, std::span<std::byte> into) noexcept {
  std::memcpy(into.data(), &now, sizeof now);
  return sizeof now;
}

std::optional<moment> unpack_answer(std::span<const std::byte> message) noexcept {
  moment now = 0;
  if (message.size() != sizeof now) return std::nullopt;
  std::memcpy(&now, message.data(), sizeof now);
  if (now > latest_moment) return std::nullopt;
  return now;
}

std::size_t pack(const set_request& what, std::span<std::byte> into) noexcept {
  auto put = [rest = into](std::span<const std::byte> bytes) mutable {
    std::copy(bytes.begin(), bytes.end(), rest.begin());
    rest = rest.subspan(bytes.size());
    return bytes.size();
  };
  const auto* const bytes = std::get_if<std::string_view>(&what.value);
  const std::array<std::uint8_t, 3> head{static_cast<std::uint8_t>(bytes == nullptr),
                                         static_cast<std::uint8_t>(what.key.size() & 0xff),
                                         static_cast<std::uint8_t>(what.key.size() >> 8)};
  std::size_t taken = put(std::as_bytes(std::span(head)));
  taken += put(std::as_bytes(std::span(what.key)));
  if (bytes != nullptr) return taken + put(std::as_bytes(std::span(*bytes)));
  return taken + put(std::get<weft::mr::remote_region>(what.value).pack());
}

std::optional<set_request> unpack_set(std::span<const std::byte> message) {
  constexpr std::size_t head_bytes = 3;
  if (message.size() < head_bytes || std::to_integer<unsigned>(message[0]) > 1) return std::nullopt;
  const bool lent = std::to_integer<unsigned>(message[0]) == 1;
  const auto key_size = std::to_integer<std::size_t>(message[1]) | std::to_integer<std::size_t>(message[2]) << 8;
  const auto rest = message.subspan(head_bytes);
  if (key_size > rest.size()) return std::nullopt;
  set_request found{.key = text_of(rest.first(key_size)), .value = text_of(rest.subspan(key_size))};
  if (!is_key(found.key)) return std::nullopt;
  if (!lent) return found;
  try {
    const auto memory = weft::mr::remote_region::unpack(rest.subspan(key_size));
    memory.require(weft::mr::usage::read_src, "set");
    found.value = memory;
    return found;
  } catch (const weft::error&) {
    return std::nullopt;
  }
}

std::optional<std::size_t> text_session::execute(std::string_view input, std::string& output) {
  const std::size_t before = output.size();
  std::size_t taken = 0;
  while (taken != input.size() && output.size() - before < enough_answers) {
    const auto count = execute_one(input.substr(taken), output);
    if (!count) return std::nullopt;
    if (*count == 0) break;
    taken += *count;
  }
  return taken;
}

// Yields 0 if it is not all there yet.
std::optional<std::size_t> text_session::execute_one(std::string_view input, std::string& output) {
  const std::size_t end = input.find('\n');
  if (end == std::string_view::npos && input.size() < longest_command) return 0;
  if (end >= longest_command) {  // or nowhere: however the words were cut on their way
    output += "CLIENT_ERROR line too long\r\n";
    return std::nullopt;
  }
  std::string_view line = input.substr(0, end);
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.starts_with("set ")) {
    const auto behind = execute_set(line, input.substr(end + 1), output);
    if (!behind || *behind == 0) return behind;
    return end + 1 + *behind;
  }
  std::array<std::string_view, 2> words;
  if (!split(line, words) || words[0] != "get" || !is_key(words[1])) {
    output += "ERROR\r\n";
    return end + 1;
  }
  if (const auto found = data_.find(words[1], now_())) {
    const std::string_view bytes = found->view();
    fmt::format_to(std::back_inserter(output), "VALUE {} {} {}\r\n", words[1], found->flags(), bytes.size());
    output.append(bytes).append("\r\n");
  }
  output += "END\r\n";
  return end + 1;
}

// Of what is behind the line, it takes the value and the end of its line.
std::optional<std::size_t> text_session::execute_set(std::string_view line, std::string_view rest,
                                                     std::string& output) {
  const auto refuse = [&](const char* why) {
    output += why;  // where the next command begins is not known then
    return std::nullopt;
  };
  std::array<std::string_view, 5> words;
  if (!split(line, words)) return refuse("ERROR\r\n");
  const std::string_view key = words[1];
  attributes beside;
  std::int64_t expiry = 0;
  std::size_t size = 0;
  if (!is_key(key) || !parse(words[2], beside.flags) || !parse(words[3], expiry) || !parse(words[4], size)) {
    return refuse("CLIENT_ERROR bad command line format\r\n");
  }
  if (size > data_.longest_value()) return refuse("SERVER_ERROR object too large for cache\r\n");
  const std::size_t line_end = rest.find('\n', size);
  if (line_end == std::string_view::npos && rest.size() <= size + 1) return 0;
  if (line_end > size + 1 || (line_end == size + 1 && rest[size] != '\r')) {
    return refuse("CLIENT_ERROR bad data chunk\r\n");
  }
  beside.expires = expires_at(expiry, now_());
  data_.set(key, rest.substr(0, size), beside, now_());
  output += "STORED\r\n";
  return line_end + 1;
}

}  // namespace kv
