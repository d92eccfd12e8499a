// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/options.hpp>

#include "run.hpp"

namespace weft::sim {

/// The connection of a client with this port and those from there on, in the order of the script.
inline constexpr std::uint16_t first_client_port = 20'000;

/// Rails of a connection: at most.
inline constexpr std::size_t most_rails = 4;
/// Where the rails of a connection are listened for: each has a port of its own, which names its cable.
[[nodiscard]] constexpr std::uint16_t cable_of(std::size_t connection, std::size_t rail) noexcept {
  return static_cast<std::uint16_t>(7471 + connection * most_rails + rail);
}

/// What it can do beyond messages, writes and reads.
struct abilities {
  bool atomics = true;
  bool write_immediate = true;
  bool shared_receives = true;
  enum : std::uint8_t { none, of_all_peers, of_one_peer } windows = of_one_peer;
};

/// What the connections of a run go over.
class medium : private test::immovable {
 public:
  medium() = default;
  virtual ~medium() = default;

  [[nodiscard]] virtual system_calls& calls() noexcept = 0;
  /// A transport with its part of the options; once for each device of the run.
  [[nodiscard]] virtual std::unique_ptr<net::transport> open(const net::device_options& options) = 0;
  [[nodiscard]] virtual abilities can() const noexcept { return {}; }
  /// Whether a region of any memory can have addresses that begin with zero.
  [[nodiscard]] virtual bool has_zero_based() const noexcept { return true; }
  /// Whether one end cannot know why the other one has ended: see net::capabilities.
  [[nodiscard]] virtual bool explains_no_end() const noexcept { return false; }
  /// Whether two ends share memory: a peer that has none to connect with says not_supported or rejects, and a message
  /// is there in the turn in which it is sent.
  [[nodiscard]] virtual bool has_channels() const noexcept { return false; }
  /// Whether libraries below it keep descriptors for themselves once they have opened them.
  [[nodiscard]] virtual bool keeps_descriptors() const noexcept { return false; }
  /// Does that to the connection whose client has this port.
  virtual void inflict(std::uint16_t port, const fault& what) = 0;
  /// Whether both ends have a link over that rail of this connection.
  [[nodiscard]] virtual bool has_rail(std::size_t, std::size_t) const { return false; }
  /// The device goes for good, where there is one that can.
  virtual void remove() {}
  /// Whether a peer could use that key: false if nobody can tell.
  [[nodiscard]] virtual bool opens(mr::domain&, std::uint32_t) const { return false; }
  /// What no connection uses any more and peers could: in words, empty if there is nothing.
  [[nodiscard]] virtual std::string left_at(mr::domain& domain) const = 0;
  /// The same once all devices are closed, of everything.
  [[nodiscard]] virtual std::string leaks() = 0;
};

/// Throws weft::error where this build has no such transport.
[[nodiscard]] std::unique_ptr<medium> make_medium(const setting& where, world& place, const script& what);

}  // namespace weft::sim
