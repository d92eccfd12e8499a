// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection.hpp>
#include <weft/net/options.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/task.hpp>

#include <cstdint>
#include <optional>
#include <string>

#include "protocol.hpp"

namespace kvcache {

/// The options of both sides' connections. Either may have its cache in a GPU's memory, so that both allow for it.
[[nodiscard]] weft::net::connection_options connection_options(weft::duration patience) noexcept;

/// A connection to another kvcache, in terms of its protocol. Errors of the connection are weft::error.
class session {
 public:
  /// Throws weft::errc::protocol_error if the peer is not a kvcache.
  explicit session(weft::net::connection peer);

  /// The next message; weft::errc::peer_closed if the peer has closed instead. Waits as long as the peer lives.
  [[nodiscard]] weft::task<message> receive();
  /// The same where the peer may close: empty then.
  [[nodiscard]] weft::task<std::optional<message>> receive_if_any();
  [[nodiscard]] weft::task<> send(packed_message what);

  /// Writes blocks, and tells the peer once all of them are in place: it receives layer_message with that number. The
  /// blocks have a name, and outlive the task.
  [[nodiscard]] weft::task<> push(const weft::net::block_list& blocks, std::uint32_t number);

  [[nodiscard]] weft::net::connection& peer() noexcept { return peer_; }
  [[nodiscard]] std::string peer_name() const { return std::string(peer_.peer()); }

 private:
  weft::net::connection peer_;
};

/// For a peer that sends what it may not.
[[nodiscard]] weft::error unexpected(const message& what, const char* instead_of);

}  // namespace kvcache
