// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kv/table.hpp>

namespace kv {

/// A client of the text protocol: over plain TCP, where the address is "tcp://HOST:PORT".
class text_client {
 public:
  [[nodiscard]] static weft::task<text_client> connect(weft::net::device& device, std::string address);

  /// Asks for several keys at once, as many as one round trip takes, and calls `each(index, found, value)` for each.
  template <class Each>
  [[nodiscard]] weft::task<> get(std::span<const std::string> keys, Each each) {
    co_await ask(keys);
    for (std::size_t i = 0; i < keys.size(); ++i) {
      value got;
      const bool found = co_await answer(got);
      each(i, found, got);
    }
  }
  [[nodiscard]] weft::task<> set(std::string_view key, std::string_view bytes);
  [[nodiscard]] weft::task<> close() { co_await server_.close(); }

 private:
  explicit text_client(weft::net::stream server) noexcept : server_(std::move(server)) {}
  weft::task<> ask(std::span<const std::string> keys);
  weft::task<bool> answer(value& into);
  weft::task<> have(std::size_t bytes);
  weft::task<std::string_view> line();

  static constexpr std::size_t longest_line = 4096;

  weft::net::stream server_;
  std::vector<char> room_ = std::vector<char>(16384);
  std::size_t begin_ = 0;  // of what was received and not taken
  std::size_t end_ = 0;
};

}  // namespace kv
