// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

namespace weft::net {

/// Bytes of private data that one native peer can send another with its set-up.
inline constexpr std::size_t max_private_data = 28;

/// The same in profile::interop, and towards a peer that is not weft: as much as every transport carries.
inline constexpr std::size_t max_interop_private_data = 56;

/// The largest receive_depth and send_depth.
inline constexpr std::uint16_t max_depth = 32767;

/// What a connection speaks besides its transport's standard.
enum class profile : std::uint8_t {
  native,   ///< weft's own messages, if the peer is weft as well: credits, an orderly close told from a death
  interop,  ///< nothing: strictly by the standard, whoever the peer is, and with peers of the standard's first revision
};

class shared_receives;

/// How to set a connection up. Both sides choose their own; what the peer must know is exchanged.
struct connection_options {
  std::uint32_t receive_size = 4096;  ///< the largest message that this end takes, in bytes
  std::uint16_t receive_depth = 16;   ///< messages that the peer may send before one is received here
  std::uint16_t send_depth = 64;      ///< operations of ours with the transport at a time
  std::uint16_t incoming_reads = 16;  ///< one-sided reads that the peer may have outstanding (IRD)
  std::uint16_t outgoing_reads = 16;  ///< and that we may (ORD)

  /// For all steps together. RDMA's connection manager repeats a request that was lost after 4.6 s.
  std::chrono::milliseconds set_up_timeout{10000};
  std::chrono::milliseconds close_timeout{2000};     ///< for an orderly close, after which it is an abort
  std::chrono::milliseconds dead_peer_after{10000};  ///< silence of the peer's machine that ends the connection
  /// How long a read may wait behind messages of a peer without credits that nobody here receives: then the connection
  /// ends with errc::not_receiving. Zero: for ever.
  std::chrono::milliseconds overdue_after{10000};

  net::profile profile = net::profile::native;
  std::optional<bool> checksum{};  ///< none: between hosts, but not within one
  /// With checksums, receive large payloads where they belong instead of copying them there once they have been
  /// checked. Faster, but damage is noticed, and the connection ended, only after it was placed: RFC 5044 section 6
  /// forbids it.
  bool place_unchecked = false;
  /// Let expose() and bind() make do with windows whose key works on every connection of the device, where the RDMA
  /// device has no others (type 1 of ibv_alloc_mw(3)). For peers that may see each other's memory.
  bool allow_shared_windows = false;
  std::span<const std::byte> private_data{};  ///< for the peer; max_private_data bytes, or max_interop_private_data

  /// Take receives from these, instead of receive_depth of one's own; receive_size is theirs then. Needed until
  /// connect() or accept() returns.
  shared_receives* receives = nullptr;

  /// For connect(), which needs the text until it returns: the address of this machine to connect from, "10.0.0.2:0",
  /// where port 0 lets the system choose; of a name, the first address of the peer's family. Empty: the system's
  /// choice.
  std::string_view source{};
  /// What the network shall make of the connection's packets: the six bits of RFC 2474, above two that are not ours to
  /// set. None: the system's choice, or for accept() that of the listener.
  std::optional<std::uint8_t> traffic_class{};
};
static_assert(std::is_trivially_destructible_v<connection_options>);

/// How to listen.
struct listener_options {
  std::chrono::milliseconds set_up_timeout{5000};  ///< for a peer that has connected to say what it wants
  std::size_t half_open_limit = 128;               ///< peers in that state; further ones wait in the kernel's backlog
  std::optional<std::uint8_t> traffic_class{};     ///< connection_options::traffic_class, from a peer's first packet on
};
static_assert(std::is_trivially_destructible_v<listener_options>);

/// How to open a device.
struct device_options {
  mr::pool_options pool{};
};
static_assert(std::is_trivially_destructible_v<device_options>);

}  // namespace weft::net
