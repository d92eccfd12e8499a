// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kv {

/// A client of Redis's and Valkey's protocol over a stream of bytes: net::stream, or valkey_stream. One call at a time.
template <class Stream>
class resp_client {
 public:
  explicit resp_client(Stream server) noexcept : server_(std::move(server)) {}

  /// The value, or nothing if there is none. Throws weft::error, also for what the server has against it.
  [[nodiscard]] weft::task<std::optional<std::string>> get(std::string_view key) {
    const std::array<std::string_view, 2> words{"GET", key};
    co_await ask(words);
    co_return co_await answer("get");
  }
  [[nodiscard]] weft::task<> set(std::string_view key, std::string_view bytes) {
    const std::array<std::string_view, 3> words{"SET", key, bytes};
    co_await ask(words);
    const auto said = co_await answer("set");
    if (said != "OK") throw weft::error(weft::errc::malformed, "set: the server does not say OK");
  }
  [[nodiscard]] weft::task<> close() { co_await server_.close(); }

 private:
  static constexpr std::size_t longest_line = 1024;
  static constexpr std::size_t longest_answer = std::size_t{512} << 20;  // of a value, as Redis has it

  weft::task<> ask(std::span<const std::string_view> words) {
    std::string command = "*" + std::to_string(words.size()) + "\r\n";
    for (const std::string_view each : words) {
      command.append("$").append(std::to_string(each.size())).append("\r\n").append(each).append("\r\n");
    }
    co_await server_.write(std::as_bytes(std::span(command)));
  }

  // Of what GET and SET are answered with: a line, a string, an error, or nothing.
  weft::task<std::optional<std::string>> answer(std::string_view what) {
    const std::string line = co_await next_line();
    const std::string_view rest = std::string_view(line).substr(line.empty() ? 0 : 1);
    if (line.starts_with('+')) co_return std::string(rest);
    if (line.starts_with('-'))
      throw weft::error(weft::errc::invalid_argument, fmt::format("{}: the server says {}", what, rest));
    std::int64_t size = 0;
    const auto [stop, failure] = std::from_chars(rest.data(), rest.data() + rest.size(), size);
    const bool is_number = failure == std::errc() && stop == rest.data() + rest.size();
    if (!line.starts_with('$') || !is_number || size < -1 || size > static_cast<std::int64_t>(longest_answer)) {
      throw weft::error(weft::errc::malformed,
                        fmt::format("{}: the server's answer is not valid: {}", what, line.substr(0, 40)));
    }
    if (size == -1) co_return std::nullopt;
    const auto bytes = static_cast<std::size_t>(size);
    while (come_.size() < bytes + 2) co_await more();
    if (come_.compare(bytes, 2, "\r\n") != 0) {
      throw weft::error(weft::errc::malformed, fmt::format("{}: the server's value has no end", what));
    }
    std::string behind = come_.substr(bytes + 2);
    come_.resize(bytes);
    co_return std::exchange(come_, std::move(behind));
  }

  weft::task<std::string> next_line() {
    for (;;) {
      if (const std::size_t end = come_.find("\r\n"); end != std::string::npos) {
        std::string line = come_.substr(0, end);
        come_.erase(0, end + 2);
        co_return line;
      }
      if (come_.size() > longest_line) throw weft::error(weft::errc::malformed, "the server's line is too long");
      co_await more();
    }
  }

  weft::task<> more() {
    std::array<std::byte, 16384> room;
    const std::size_t count = co_await server_.read_some(room);
    if (count == 0) throw weft::error(weft::errc::peer_closed, "the server");
    come_.append(reinterpret_cast<const char*>(room.data()), count);
  }

  Stream server_;
  std::string come_;
};

}  // namespace kv
