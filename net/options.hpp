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

/// The protocol that a connection speaks on top of its transport's standard.
enum class profile : std::uint8_t {
  native,   ///< weft's own messages, if the peer is weft as well: credits, an orderly close distinct from a death
  interop,  ///< nothing: strictly by the standard, whoever the peer is, and with peers of the standard's first revision
};

class shared_receives;

/// How to set a connection up. Both sides choose their own; what the peer must know is exchanged.
struct connection_options {
  /// The largest message that this end takes, in bytes. A connection takes receive_depth and a few buffers of that size
  /// from the pool's receive budget: 1 MiB leaves room for 4 connections in a pool of usual size. A process that
  /// accepts where there is room for fewer than 8 is warned (report_kind::warning), unless device_options say how large
  /// the pool is.
  std::uint32_t receive_size = 4096;
  std::uint16_t receive_depth = 16;   ///< messages that the peer may send before one is received here
  std::uint16_t send_depth = 64;      ///< operations of this end with the transport at a time
  std::uint16_t incoming_reads = 16;  ///< one-sided reads that the peer may have outstanding (IRD)
  std::uint16_t outgoing_reads = 16;  ///< one-sided reads that this end may have outstanding (ORD)

  /// For all steps together. RDMA's connection manager repeats a request that was lost after 4.6 s.
  std::chrono::milliseconds set_up_timeout{10000};
  std::chrono::milliseconds close_timeout{2000};  ///< for an orderly close, after which it is an abort
  /// Silence of the peer's machine that ends the connection. A peer that answers and does not read is not silent; but
  /// where TCP waits for such a one to read, and then the machine falls silent, it takes up to three times as long.
  std::chrono::milliseconds dead_peer_after{10000};
  /// Asks a peer of which nothing has been heard for so long whether its program still runs, and ends the connection
  /// with errc::peer_vanished if it has not answered within two or three times as long. Without it a program that
  /// hangs, or that was stopped (SIGSTOP), goes unnoticed: its machine answers for it, and dead_peer_after watches the
  /// machine alone.
  ///
  /// The peer's executor answers, whatever its own option says, where capabilities().heartbeats is set. A heartbeat
  /// goes behind what was posted before it and its answer likewise, so choose more than the longest single transfer
  /// takes, and than the peer's executor may be busy at a stretch. All connections of an executor with the same
  /// heartbeat are looked after in one turn: from 500 ms on they wake an idle executor no more often than it wakes by
  /// itself. Zero: never asks.
  std::chrono::milliseconds heartbeat{0};
  /// How long a read may wait behind messages of a peer without credits that this end does not receive: after that the
  /// connection ends with errc::not_receiving. Zero: for ever.
  std::chrono::milliseconds overdue_after{10000};

  /// How long the connection waits for a link once all that it had are lost: one, or the rails of device::open().
  /// Meanwhile operations wait, or are stopped as usual, and what was exposed stays so. The end that has connected
  /// links anew, with growing pauses. Then the connection goes on where it was, or it ends with errc::peer_restarted if
  /// the peer knows nothing of it any more.
  ///
  /// Both ends have to choose this, each its own time, and the listener has to be open still:
  /// capabilities().resumes tells whether they have. Shared memory is there for as long as the peer, so that nothing is
  /// waited for there. Such a connection has receives of its own: errc::not_supported for shared ones. See
  /// docs/rails.md. Zero: the connection ends with its last link.
  std::chrono::milliseconds resume_within{0};
  /// How many pieces of memory the peer may have exposed at a time over a connection of rails, or one that resumes:
  /// this end keeps up to 200 bytes for each. With more the connection ends with errc::protocol_error.
  std::size_t max_peer_exposures = 65536;

  /// Moves memory of devices (mr::registration_options::device) over fabrics that do not reach it: what is written,
  /// read or sent is copied through host memory in pieces, by the devices' own copy engines. Both ends have to choose
  /// this for one-sided operations on memory of the peer's device; capabilities().device_memory tells whether they
  /// have. It takes 18 more receives, and up to 4 MiB of the pool once it is used. Such a connection has receives of
  /// its own: errc::not_supported for shared ones. See docs/device-memory.md.
  bool device_memory = false;

  net::profile profile = net::profile::native;  ///< what is spoken with the peer
  std::span<const std::byte> private_data{};    ///< for the peer; max_private_data bytes, or max_interop_private_data

  /// Receives to share with other connections, in place of receive_depth of this one's own; their size replaces
  /// receive_size. Needed until connect() or accept() returns.
  shared_receives* receives = nullptr;

  /// For connect(), which needs the text until it returns: the address of this machine to connect from, "10.0.0.2:0",
  /// where port 0 lets the system choose; of a name, the first address of the peer's family. Empty: the system's
  /// choice.
  std::string_view source{};
  /// The traffic class of the connection's packets: the six bits of RFC 2474, shifted left by two (the lowest two bits
  /// are the network's). None: the system's choice, or for accept() the listener's.
  std::optional<std::uint8_t> traffic_class{};
};
static_assert(std::is_trivially_destructible_v<connection_options>);

/// How to share receives.
struct shared_receive_options {
  std::uint32_t receive_size = 4096;                ///< the largest message that the connections take, in bytes
  std::uint16_t depth = 256;                        ///< messages that have come on any of them, at most max_depth
  std::chrono::milliseconds set_up_timeout{10000};  ///< for the pool to have the memory
};
static_assert(std::is_trivially_destructible_v<shared_receive_options>);

/// How to listen.
struct listener_options {
  std::chrono::milliseconds set_up_timeout{5000};  ///< for a peer that has connected to say what it wants
  /// The most peers that have not sent their request, and requests that nobody has taken. At that limit the next peer
  /// replaces a silent one: of the address that has most of them, the one silent longest, once it has had 25 ms.
  /// Requests that nobody takes are not ended for others, which wait in the kernel's backlog; while the device has
  /// connections of rails, or that resume, others are turned away as by max_connections, so that links of these come
  /// back. Peers of an RDMA device come with their request, and further ones are rejected.
  std::size_t max_half_open = 256;
  /// Connections that peers may have through this listener at a time, with the requests that next() has yielded and
  /// nobody has answered. A connection leaves its place to the next peer once it is closed at this end. Peers beyond
  /// are told at once, because most of them would run out of time in a queue: their connect() fails with ENOBUFS, "the
  /// peer has its maximum of connections", and next() goes on waiting. Plain TCP has no words for that and closes.
  ///
  /// Zero: as many as the pool has receives for, of the size and number that accept() is given; as many again may wait
  /// in accept() for theirs, and peers beyond are told at once that there are none left. Connections that share
  /// receives and plain TCP take none of the pool in advance, so that nothing limits them.
  std::size_t max_connections = 0;
  std::optional<std::uint8_t> traffic_class{};  ///< connection_options::traffic_class, from a peer's first packet on
};
static_assert(std::is_trivially_destructible_v<listener_options>);

/// What connections over iWARP in user space do.
struct iwarp_options {
  /// Protect what connections carry by a CRC. It is used where either end wants it. None: elsewhere than over the
  /// loopback.
  std::optional<bool> checksum{};
  /// With checksums, receive large payloads where they belong instead of copying them there once they have been
  /// checked. Faster, but damage is noticed, and the connection ended, only after it was placed: RFC 5044 section 6
  /// forbids it. See capabilities::max_whole_write_bytes, too, which it lowers.
  bool place_unchecked = false;
};
static_assert(std::is_trivially_destructible_v<iwarp_options>);

/// What connections over RDMA devices do.
struct verbs_options {
  /// Let expose() use windows whose key works on every connection of the device, if the RDMA device has no others
  /// (type 1 of ibv_alloc_mw(3)). For peers that may see each other's memory.
  bool allow_shared_windows = false;
};
static_assert(std::is_trivially_destructible_v<verbs_options>);

/// What connections between processes of one machine do.
struct shm_options {
  /// Let device::open("auto") take shared memory for peers of this machine, before it takes an RDMA device or iWARP.
  bool automatic = true;
  /// In each of a connection's two rings: what one end has written and the other has not read yet. A power of two from
  /// 16 KiB to 16 MiB; a connection has the smaller ones of its two ends. Pages of it that nothing has been written to
  /// take no memory.
  std::size_t ring_bytes = std::size_t{256} << 10;
};
static_assert(std::is_trivially_destructible_v<shm_options>);

/// How to open a device. The options of a transport apply to the fabrics of that transport only.
struct device_options {
  mr::pool_options pool{};  ///< of the pool for buffers
  iwarp_options iwarp{};    ///< of iWARP over TCP
  verbs_options verbs{};    ///< of RDMA devices
  shm_options shm{};        ///< of shared memory
};
static_assert(std::is_trivially_destructible_v<device_options>);

}  // namespace weft::net
