// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <rpc/protocol.hpp>

namespace rpc {

/// What a method has before it: one call of a client's.
class incoming_call {
 public:
  incoming_call(weft::net::device& device, weft::net::connection& peer, weft::duration patience,
                const call_message& what);

  [[nodiscard]] std::string_view arguments() const noexcept { return arguments_; }
  [[nodiscard]] weft::mr::pool& pool() noexcept { return device_.pool(); }

  /// How many bytes of the client's memory are free for a large answer.
  [[nodiscard]] std::uint64_t room() const noexcept { return room_ ? room_->size() - written_ : 0; }
  /// Writes the next part of a large answer there, one-sidedly. It is in its place when the client has the answer.
  /// errc::out_of_range for more than room(), errc::timed_out for a client that does not take it.
  [[nodiscard]] weft::task<> append(weft::mr::buffer part);

 private:
  friend class conversation;

  weft::net::device& device_;
  weft::net::connection& peer_;
  weft::duration patience_;
  std::uint64_t id_;
  std::string method_;  // copies: the message's memory goes back at once, however long the method takes
  std::string arguments_;
  std::optional<weft::mr::remote_region> room_;
  std::uint64_t written_ = 0;
  weft::event canceled_;
};

/// Does what a client asks for and yields a text of at most longest_answer bytes. What it throws goes back to the
/// client in words. When the client waits no more, it is stopped: what it awaits throws errc::canceled. It should end
/// soon then, for the client lends its memory until it has.
using method = std::function<weft::task<std::string>(incoming_call&)>;
using method_table = std::map<std::string, method, std::less<>>;

struct serve_options {
  /// How long a client may take to take an answer or a part of one: a client that has stopped would keep memory of the
  /// server's. And how long calls may go on when the server ends.
  std::chrono::milliseconds patience{10'000};
};

/// Answers calls until the listener is closed; then it takes no more, lets those that are under way end, and closes the
/// connections in order. Any number of clients at a time; one client's trouble is a line on the standard error stream
/// and does not disturb the others.
[[nodiscard]] weft::task<> serve(weft::net::device& device, weft::net::listener& listener, const method_table& methods,
                                 serve_options options = {});

}  // namespace rpc
