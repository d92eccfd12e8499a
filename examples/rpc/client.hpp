// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstddef>
#include <list>
#include <string>
#include <type_traits>

#include <rpc/session.hpp>

namespace rpc {

struct client_options {
  /// How long a server may take to confirm that a call that has timed out is over.
  std::chrono::milliseconds patience{10'000};
  /// For large answers, those of calls that have timed out included. At most half of what the pool has for receiving:
  /// messages must find memory however many rooms wait for theirs.
  std::size_t room_bytes = std::size_t{64} << 20;
  weft::net::retry_options retry{};  ///< when the connection was lost
};
static_assert(std::is_trivially_destructible_v<client_options>);

/// Calls to one server: any number at a time, from any task of one executor, over one connection, which is made anew
/// when it is lost. Use it through with_client().
///
/// A call that was under way when the connection was lost fails, and error::posted() says whether the server may have
/// had it: only the program knows whether it may be done twice, so it is not repeated here. A call that comes while
/// there is no connection waits for one, no longer than its timeout.
class client {
 public:
  client(weft::net::device& device, std::string address, client_options options = {});

  /// What the call yields. Throws call_failed, in the server's words, and weft::error: errc::timed_out among others.
  [[nodiscard]] weft::task<std::string> call(request what);
  /// The same for an answer of up to `most_bytes`, which the server writes into a buffer of ours: a buffer of the
  /// answer's size. errc::invalid_argument for more than client_options::room_bytes.
  [[nodiscard]] weft::task<weft::mr::buffer> fetch(request what, std::size_t most_bytes);

  /// Calls that the server has not answered, those that have timed out included.
  [[nodiscard]] std::size_t unanswered() const noexcept { return current_ != nullptr ? current_->unanswered() : 0; }

  /// The first connection: not repeated, so that a wrong address is told at once.
  [[nodiscard]] weft::task<> connect();
  /// Hears what the server says, and connects again when the connection is lost. Throws when that does not help.
  [[nodiscard]] weft::task<> run();
  /// Ends calls under way with errc::closed, and closes in order. Later calls are errc::closed.
  [[nodiscard]] weft::task<> close();

 private:
  // A connection that has ended stays until the calls on it have left.
  struct life {
    life(weft::net::connection peer, weft::mr::pool& pool, weft::duration patience)
        : link(std::move(peer), pool, patience) {}
    session link;
    std::size_t users = 0;
  };
  class visit;

  weft::task<visit> enter();
  void begin(weft::net::connection peer);
  weft::task<std::string> call_now(request what);
  weft::task<weft::mr::buffer> fetch_now(request what, std::size_t most_bytes);

  weft::net::device& device_;
  std::string address_;
  client_options options_;
  weft::semaphore rooms_;
  std::list<life> lives_;
  session* current_ = nullptr;  // null: there is none now
  weft::event connected_;
  bool closed_ = false;
};

/// Connects, has `body(client&)` call, a task of a named closure, and closes in order when that has returned.
template <class Body>
[[nodiscard]] weft::task<> with_client(weft::net::device& device, std::string address, client_options options,
                                       const Body& body) {
  client calls(device, std::move(address), options);
  co_await calls.connect();
  const auto both = [&](weft::scope& tasks) -> weft::task<> {
    tasks.spawn(calls.run());
    co_await body(calls);
    co_await calls.close();
    tasks.request_stop();
  };
  co_await weft::with_scope(weft::on_failure::stop_siblings, both);
}

}  // namespace rpc
