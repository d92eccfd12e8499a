// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <string>

#include "chunk_budget.hpp"
#include "protocol.hpp"

namespace copy {

/// How many chunks one transfer has in flight: being read, on the way, and being stored. More of them would not fit
/// into the cache of a processor.
inline constexpr std::size_t chunks_in_flight = 4;
/// The registered memory that this process uses for chunks and messages.
inline constexpr std::size_t pool_bytes = std::size_t{64} << 20;

/// How many chunks all transfers of a process may hold, of one budget of its pool: a quarter is left for messages. The
/// pool may be smaller than pool_bytes, because of the locked-memory limit for instance.
[[nodiscard]] std::size_t chunks_of(const weft::mr::budget_statistics& memory) noexcept;

/// What all connections of a process share. The transfers of one address have no more chunks than one transfer uses.
struct station {
  weft::net::device& device;
  weft::duration patience;                  ///< session::patience() of a connection that does not wait for rails
  std::chrono::milliseconds resume_within;  ///< weft::net::connection_options::resume_within
  chunk_budget sending;
  chunk_budget receiving;

  station(weft::net::device& by, weft::duration patience_with_peers, std::chrono::milliseconds resumes_within = {});
};

/// The options of both sides' connections.
[[nodiscard]] weft::net::connection_options connection_options(weft::duration patience,
                                                               std::chrono::milliseconds resume_within = {}) noexcept;

/// A connection to another copy, in terms of its protocol. Errors of the connection are weft::error.
class session {
 public:
  /// Throws weft::errc::protocol_error if the peer is not a copy.
  session(station& home, weft::net::connection peer);

  /// The next message; weft::errc::peer_closed if the peer has closed instead.
  [[nodiscard]] weft::task<message> receive();
  /// The same in a transfer that holds chunks: where others wait for them, and `owed` says that it is the peer's turn,
  /// it has no more than a moment.
  template <class Owed>
  [[nodiscard]] weft::task<message> receive(const chunk_budget::share& held, const Owed& owed) {
    for (weft::duration waited{};; waited += longest_turn) {
      try {
        const auto received =
            co_await weft::with_timeout(std::min(patience() - waited, longest_turn), peer_.recv_or_throw());
        co_return unpack(received.bytes());
      } catch (const weft::error& why) {
        const bool is_over = why.code() != weft::errc::timed_out || waited + longest_turn >= patience();
        if (is_over || (owed() && held.is_wanted())) throw;
      }
    }
  }
  /// The same where the peer may close: empty then.
  [[nodiscard]] weft::task<std::optional<message>> receive_if_any();
  [[nodiscard]] weft::task<> send(packed_message what);
  /// A message in memory of its own, to be sent together with other operations.
  [[nodiscard]] weft::task<weft::mr::buffer> in_buffer(packed_message what);

  /// How long to wait for a peer that does not go on: the connection may wait for a rail before it can.
  [[nodiscard]] weft::duration patience() const;

  [[nodiscard]] station& home() noexcept { return home_; }
  [[nodiscard]] weft::net::connection& peer() noexcept { return peer_; }
  [[nodiscard]] std::string peer_name() const { return std::string(peer_.peer()); }
  /// Without the port.
  [[nodiscard]] std::string peer_host() const { return peer_name().substr(0, peer_.peer().rfind(':')); }

 private:
  // How long a peer may be silent while others wait for its chunks.
  static constexpr weft::duration longest_turn = std::chrono::seconds(2);

  station& home_;
  weft::net::connection peer_;
};

/// For a peer that sends what it may not.
[[nodiscard]] weft::error unexpected(const message& what, const char* instead_of);

}  // namespace copy
