// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include <common/permits.hpp>
#include <rpc/protocol.hpp>

namespace rpc {

/// What to ask of a server. The texts outlive the call.
struct request {
  std::string_view method;
  std::string_view arguments{};
  weft::duration timeout = std::chrono::seconds(5);  ///< for all of it, waiting for one's turn included
};
static_assert(std::is_trivially_destructible_v<request>);

/// A call that the server could not do, in the server's words. The connection and the other calls are as good as
/// before; what breaks the connection is a weft::error.
class call_failed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What both sides say when they connect.
[[nodiscard]] std::span<const std::byte> greeting() noexcept;

/// Memory for a large answer, open to the server, and its part of what a client lends out in all.
struct room {
  common::permits share;
  weft::net::exposure memory;
};

/// The client's end of one connection: any number of calls at a time, of which most_calls are with the server.
///
/// A caller that is stopped, by its timeout or otherwise, returns at once. Its call stays in the table until the server
/// has answered: until then the server may still write to the call's room, which the connection keeps meanwhile
/// (weft::net::exposure::retire()), so that neither this connection nor the other calls on it notice.
class session {
 public:
  /// `patience` is how long the server may take to confirm that a call which nobody waits for is over: then the
  /// connection ends, for such calls hold memory. Throws weft::errc::protocol_error if the peer is no rpc server.
  session(weft::net::connection peer, weft::mr::pool& pool, weft::duration patience);

  /// Hears what the server says, until the connection is over; then every call has failed. Run it beside the calls.
  /// Yields why the connection has ended.
  [[nodiscard]] weft::task<weft::error> run();

  /// What the call yields. Throws call_failed, and weft::error, whose posted() says whether the server may have had it.
  [[nodiscard]] weft::task<std::string> call(request what);
  /// The same for a large answer: what the server has written to `memory`, a buffer of its length.
  [[nodiscard]] weft::task<weft::mr::buffer> fetch(request what, weft::mr::buffer memory, common::permits share);

  /// Ends the calls under way with errc::closed, and closes in order.
  [[nodiscard]] weft::task<> close();

  /// Calls that the server has not answered, whether somebody waits for them or not.
  [[nodiscard]] std::size_t unanswered() const noexcept { return calls_.size(); }
  /// Whether the server has ever answered.
  [[nodiscard]] bool has_served() const noexcept { return has_served_; }

 private:
  class caller;
  struct reply {
    std::string text;
    std::uint64_t written = 0;
  };
  // A call from when it is sent until it is answered.
  struct entry {
    caller* waiting = nullptr;  // null: it has given up
    weft::time_point given_up;
    bool cancel_due = false;
    common::permits slot;
    std::uint64_t room_bytes = 0;
    std::optional<std::uint32_t> room_key;  // of a room that is retired
    common::permits room_share;             // of the same
  };

  weft::task<reply> perform(const request& what, room* lent);
  weft::task<> hear_all();
  weft::task<> send_cancels();
  weft::task<> expect_answers();
  void hear(const weft::net::message& said);
  void end_all(const weft::error& why);

  weft::net::connection peer_;
  weft::mr::pool& pool_;
  weft::duration patience_;
  weft::semaphore slots_{most_calls};
  std::uint64_t last_id_ = 0;
  std::unordered_map<std::uint64_t, entry> calls_;  // at most most_calls
  weft::event cancels_due_;
  std::optional<weft::error> over_;
  bool has_served_ = false;
  bool closing_ = false;
};

}  // namespace rpc
