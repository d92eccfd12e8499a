// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/io/socket_address.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "machine.hpp"
#include "peer_report.hpp"

// Packets of UDP that must not be fragmented, to find out how large they may be on the way to a peer and back. A server
// answers a packet with the same packet, and only one that carries a token which it has given to a client of its own
// over a connection: it is no mirror for strangers.
namespace info {

/// The server's end: a thread that answers, until it is destroyed.
class packet_mirror {
 public:
  /// At "HOST:PORT", which a listener of weft has. Throws weft::error.
  explicit packet_mirror(const std::string& address);
  packet_mirror(const packet_mirror&) = delete;
  packet_mirror& operator=(const packet_mirror&) = delete;
  ~packet_mirror();

  void admit(std::uint64_t token);
  void dismiss(std::uint64_t token);

 private:
  class state;
  std::unique_ptr<state> state_;
};

/// What the kernel knows of the way to an address: the interface and IP_MTU.
[[nodiscard]] path_mtu look_up_mtu(const machine& here, const weft::socket_address& peer);

/// Whether something at the address takes a connection of plain TCP in that time. Blocks.
[[nodiscard]] bool takes_tcp(const weft::socket_address& peer, std::chrono::milliseconds patience);

/// Tries sizes until the largest is found that comes back. Blocks, for seconds where packets get lost.
void probe_mtu(const weft::socket_address& peer, std::uint64_t token, path_mtu& found);

}  // namespace info
