// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include <kv/text_client.hpp>

namespace kv {

using namespace weft;

task<text_client> text_client::connect(net::device& device, std::string address) {
  auto server = co_await net::stream::connect(device, address);
  co_return text_client(std::move(server));
}

task<> text_client::ask(std::span<const std::string> keys) {
  std::string commands;
  for (const std::string& key : keys) commands.append("get ").append(key).append("\r\n");
  co_await server_.write(std::as_bytes(std::span(commands)));
}

task<bool> text_client::answer(value& into) {
  const std::string_view first = co_await line();
  if (first == "END") co_return false;
  std::size_t size = 0;
  const std::size_t number = first.rfind(' ') + 1;
  const auto [stop, failure] = std::from_chars(first.data() + number, first.data() + first.size(), size);
  if (!first.starts_with("VALUE ") || failure != std::errc() || size > longest_value) {
    throw error(errc::malformed, fmt::format("get: the server says {}", first));
  }
  co_await have(size);
  into = value(std::string_view(room_.data() + begin_, size));
  begin_ += size;
  static_cast<void>(co_await line());
  if (co_await line() != "END") throw error(errc::malformed, "get: the answer does not end with END");
  co_return true;
}

task<> text_client::set(std::string_view key, std::string_view bytes) {
  const std::string command = fmt::format("set {} 0 0 {}\r\n{}\r\n", key, bytes.size(), bytes);
  co_await server_.write(std::as_bytes(std::span(command)));
  const std::string_view answer = co_await line();
  if (answer != "STORED") throw error(errc::invalid_argument, fmt::format("set {}: the server says {}", key, answer));
}

task<> text_client::have(std::size_t bytes) {
  while (end_ - begin_ < bytes) {
    std::copy(room_.begin() + static_cast<std::ptrdiff_t>(begin_), room_.begin() + static_cast<std::ptrdiff_t>(end_),
              room_.begin());
    end_ -= std::exchange(begin_, 0);
    if (room_.size() < bytes) room_.resize(bytes);
    const std::size_t count = co_await server_.read_some(std::as_writable_bytes(std::span(room_)).subspan(end_));
    if (count == 0) throw error(errc::peer_closed, "the server");
    end_ += count;
  }
}

// Without its end; until the next call.
task<std::string_view> text_client::line() {
  for (std::size_t known = 0;;) {
    const std::string_view text(room_.data() + begin_, end_ - begin_);
    if (const std::size_t end = text.find('\n', known); end != std::string_view::npos) {
      begin_ += end + 1;
      const std::string_view found = text.substr(0, end);
      co_return found.ends_with('\r') ? found.substr(0, end - 1) : found;
    }
    known = text.size();
    if (known >= longest_line) throw error(errc::malformed, "the server's line is too long");
    co_await have(known + 1);
  }
}

}  // namespace kv
