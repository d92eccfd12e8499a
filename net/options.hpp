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

/// Bytes of private data that an end can send in profile::interop, and in connection_request::reject() to a peer that
/// is not weft. Every transport carries that much.
inline constexpr std::size_t max_interop_private_data = 56;

/// The largest receive_depth and send_depth.
inline constexpr std::uint16_t max_depth = 32767;

/// The protocol that a connection speaks on top of its transport's standard.
enum class profile : std::uint8_t {
  native,   ///< weft's own messages, if the peer is weft as well: credits, an orderly close distinct from a death
  interop,  ///< only the standard, whatever the peer is; also for peers of the standard's first revision
};

class shared_receives;

/// How to set a connection up. Each side chooses its own options; what the peer must know is exchanged. The objects to
/// which options refer must live until the task of connect() or accept() has ended.
struct connection_options {
  /// The largest message that this end takes, in bytes. A connection takes receive_depth and a few more buffers of that
  /// size from the pool's receive budget: with 1 MiB, a pool of the default size has room for 4 connections. A process
  /// that accepts with room for fewer than 8 is warned (report_kind::warning), unless device_options set the size of
  /// the pool.
  std::uint32_t receive_size = 4096;
  std::uint16_t receive_depth = 16;   ///< the most messages of a weft peer that may wait to be received here
  std::uint16_t send_depth = 64;      ///< operations that this end may have in flight
  std::uint16_t incoming_reads = 16;  ///< one-sided reads that the peer may have outstanding (IRD)
  std::uint16_t outgoing_reads = 16;  ///< one-sided reads that this end may have outstanding (ORD)

  /// The limit for all steps of the set-up together. RDMA's connection manager repeats a lost request after 4.6 s.
  std::chrono::milliseconds set_up_timeout{10000};
  /// For an orderly close, which then becomes an abort. A time in which this executor does not run counts as a quarter
  /// of it at most.
  std::chrono::milliseconds close_timeout{2000};
  /// How long the peer's machine may be silent before the connection ends. A peer that answers but does not read is not
  /// silent. If its machine falls silent while TCP waits for it to read, noticing takes up to three times as long.
  /// Zero: no limit; but an RDMA device still gives up after its own retries.
  std::chrono::milliseconds dead_peer_after{10000};
  /// Once nothing has been heard from the peer for this long, asks whether its program still runs, and ends the
  /// connection with errc::peer_vanished if no answer comes within two to three times as long. Without heartbeats a
  /// program that hangs, or that was stopped (SIGSTOP), goes unnoticed: its machine still answers, and dead_peer_after
  /// watches the machine alone.
  ///
  /// The peer's executor answers if capabilities().heartbeats is set, whatever its own option says. A heartbeat, like
  /// its answer, is sent behind everything posted before it, so choose longer than the longest single transfer takes,
  /// and longer than the peer's executor may be busy without a break. All connections of an executor with the same
  /// heartbeat are checked in one turn, which wakes an idle executor once in that time. With an RDMA device an idle
  /// executor wakes every 500 ms anyway. Zero: no heartbeats.
  std::chrono::milliseconds heartbeat{0};
  /// How long the answer to a read or an atomic operation may wait behind messages for which there is no receive here,
  /// because their sender has no credits, or this end shares receives; then the connection ends with
  /// errc::not_receiving. Only iWARP in user space and shared memory have this limit. Over shared memory it holds for
  /// large sends and writes, too, and for operations on memory that is used directly. Zero: for ever.
  std::chrono::milliseconds overdue_after{10000};

  /// How long the connection waits for a new link once it has lost its only link, or all of its rails. Meanwhile
  /// operations wait, and can be stopped as usual, and exposed memory stays exposed. The end that connected tries to
  /// connect again, with growing pauses. With a new link the connection continues where it was. It ends with
  /// errc::peer_restarted if the peer no longer knows it, with errc::protocol_error if another program answers for the
  /// peer, and with the last link's error once the time is over. An end whose executor did not run at that moment waits
  /// up to 2 s more, once, so that it has tried.
  ///
  /// Both ends have to choose this, each its own time, and the listener must still be open: capabilities().resumes is
  /// true if both did. Shared memory is not waited for, because it lasts as long as the peer. Such a connection cannot
  /// share receives: errc::not_supported. See docs/rails.md. Zero: the connection ends with its last link; but after a
  /// late access to memory that was taken back, a connection with rails waits up to 2 s for a rail.
  std::chrono::milliseconds resume_within{0};
  /// How many pieces of memory the peer may have exposed at a time over a connection with rails, or one that resumes;
  /// this end keeps up to 200 bytes for each. Beyond that the connection ends with errc::protocol_error.
  std::size_t max_peer_exposures = 65536;

  /// Moves device memory (mr::registration_options::device) over fabrics that cannot reach it: writes, reads and sends
  /// are copied through host memory in pieces, by the devices' own copy engines. One-sided operations on memory of the
  /// peer's device need both ends to choose this; capabilities().device_memory tells whether they did. It takes 18 more
  /// receives and, once it is used, up to 4 MiB of host memory that is registered for it, more during a message of more
  /// than 2 MiB. Such a connection cannot share receives: errc::not_supported. See docs/device-memory.md.
  bool device_memory = false;
  /// Lets peers flush until what they wrote survives a power cut: connection::flush() with flush_type::persistent, of
  /// regions over files with mr::usage::flush_persistent. The owner's worker writes the memory to the storage of its
  /// file, over fabrics in software and devices that page on demand; RDMA devices with FLUSH make persistent memory
  /// persistent by themselves (mr::domain_capabilities::device_flush), and those with ATOMIC WRITE write words of eight
  /// bytes whole (capabilities::device_atomic_write). Both ends have to choose this;
  /// capabilities().persistent_flush tells whether they did. It takes two more receives, of at least 40 bytes. Such a
  /// connection cannot share receives: errc::not_supported. See docs/persistence.md.
  bool persistent_flush = false;

  net::profile profile = net::profile::native;  ///< the protocol spoken with the peer
  /// Sent to the peer: at most max_private_data bytes, or max_interop_private_data with profile::interop.
  std::span<const std::byte> private_data{};

  /// Receives shared with other connections, instead of receive_depth of its own; their size replaces receive_size.
  shared_receives* receives = nullptr;

  /// For connect(): the local address to connect from, "10.0.0.2:0", where port 0 lets the system choose; a name stands
  /// for its first address of the peer's family. Over shared memory it only has to be an address of this machine, and
  /// with rails over several fabrics it applies to the first link alone. Empty: the system's choice.
  std::string_view source{};
  /// The traffic class of the connection's packets: the six bits of RFC 2474, shifted left by two (the lowest two bits
  /// belong to the network). Empty: the system's choice, or for accept() the listener's.
  std::optional<std::uint8_t> traffic_class{};
};
static_assert(std::is_trivially_destructible_v<connection_options>);

/// How to share receives.
struct shared_receive_options {
  std::uint32_t receive_size = 4096;                ///< the largest message that the connections take, in bytes
  std::uint16_t depth = 256;                        ///< receives of each domain of the device, 1 to max_depth
  std::chrono::milliseconds set_up_timeout{10000};  ///< for the pool to provide the memory
};
static_assert(std::is_trivially_destructible_v<shared_receive_options>);

/// How to listen.
struct listener_options {
  std::chrono::milliseconds set_up_timeout{5000};  ///< for a connected peer to send its request
  /// The most peers that have connected and not sent their request, plus requests that nobody has taken. At that limit
  /// the next peer replaces one that has been silent for 25 ms: the longest silent of the origin with the most silent
  /// peers. An origin is an IPv4 address or the first half of an IPv6 address; over shared memory, a process of the
  /// same user, or another user. Requests that wait to be taken are never dropped for other peers, which wait in the
  /// kernel's backlog. While the device has connections that have rails or resume, those other peers are rejected, like
  /// peers beyond max_connections, so that links of these connections can come back. Peers of an RDMA device come with
  /// their request, and are rejected beyond the limit. listener::accept(), too, has at most this number of set-ups in
  /// progress. 0 counts as 1.
  std::size_t max_half_open = 256;
  /// The most connections through this listener at a time, counting requests that next() has yielded and nobody has
  /// answered. A connection frees its place once it is closed at this end. Peers beyond the limit are rejected and not
  /// queued, because most of them would run out of time in a queue: their connect() fails with ENOBUFS, "the peer has
  /// its maximum of connections", and next() goes on waiting. Plain TCP cannot give them a reason, and closes. Before a
  /// peer is rejected, a set-up that has waited for its own peer for 100 ms gives its place up, and fails with
  /// errc::timed_out: of the origin with the most such set-ups (see max_half_open), the one that has waited longest.
  ///
  /// Zero: as many as the pool has receives for, of the size and number that accept() is given; as many again may wait
  /// in accept() for their receives, and peers beyond that are rejected, because the pool has no receives left.
  /// Connections that share receives, and plain TCP, take nothing from the pool in advance, so nothing limits them.
  std::size_t max_connections = 0;
  std::optional<std::uint8_t> traffic_class{};  ///< connection_options::traffic_class, from a peer's first packet on
};
static_assert(std::is_trivially_destructible_v<listener_options>);

/// Options of connections over iWARP in user space.
struct iwarp_options {
  /// Protects the connection's bytes with a CRC, which is used if either end wants it. Empty: everywhere except over
  /// the loopback.
  std::optional<bool> checksum{};
  /// With checksums, receives large payloads directly in place instead of copying them there once they have been
  /// checked. Faster, but the connection ends only after the damaged bytes were placed, which RFC 5044 section 6
  /// forbids. It also lowers capabilities::max_whole_write_bytes.
  bool place_unchecked = false;
};
static_assert(std::is_trivially_destructible_v<iwarp_options>);

/// Options of connections over RDMA devices.
struct verbs_options {
  /// Lets expose() use memory windows of type 1 (ibv_alloc_mw(3)), whose keys work on every connection of the device,
  /// if the RDMA device has no other windows. Only for peers each of which may use what is exposed to the others.
  bool allow_shared_windows = false;
};
static_assert(std::is_trivially_destructible_v<verbs_options>);

/// Options of connections between processes of one machine.
struct shm_options {
  /// Lets device::open("auto") prefer shared memory, for peers of this machine, to an RDMA device or iWARP.
  bool automatic = true;
  /// The size of each of a connection's two rings, which hold bytes that one end has written and the other has not read
  /// yet. A power of two from 16 KiB to 16 MiB; the smaller size of the two ends is used. A ring takes no memory before
  /// it is first written, and then all of its size. On Linux before 5.14 it takes all when the connection is set up.
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
