// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weft::net::verbs {

/// The best kind of memory window that a device has: ibv_alloc_mw(3), and the flags of ibv_query_device(3).
enum class window_kind : std::uint8_t {
  none,
  type_1,   ///< its key works on every connection of the protection domain; ibv_bind_mw(3) binds it and chooses the key
  type_2a,  ///< its key works only on the queue pair through which it was bound, identified by the pair's number
  type_2b,  ///< like type_2a, and the pair has to be of the window's protection domain
};

/// The facts about a device that decide what weft does differently on it. The defaults are those of an InfiniBand or
/// RoCE adapter that keeps to the specification; traits_of() knows the devices that differ.
///
/// An RNIC is any iWARP device (RFC 5040). siw (SoftiWARP) and rxe (Soft-RoCE) are the kernel's software devices, as of
/// Linux 6.1.
struct device_traits {
  // ---- what it has ----

  /// Atomic operations: ibv_device_attr::atomic_cap.
  bool has_atomics = true;
  /// Memory windows: ibv_device_attr::device_cap_flags. siw has none.
  window_kind windows = window_kind::type_2b;
  /// Writes with immediate data. An RNIC has none, because they came to iWARP only with RFC 7306.
  bool has_write_immediate = true;
  /// A checksum on each packet, the invariant CRC. An RNIC does not tell whether it has agreed with its peer on one.
  bool has_checksum = true;

  // ---- memory ----

  /// Looks memory up by the iova with which it was registered. siw accepts an iova, but then ignores it and uses the
  /// memory's own address.
  bool heeds_iova = true;
  /// Keeps peers within the bounds of a window. rxe keeps them only within the region behind it.
  bool checks_window_bounds = true;
  /// Survives a key that is invalidated twice, as happens when both ends do so at the same time: it reports an error,
  /// or nothing. rxe crashes the kernel, unless the window has been deallocated by then.
  bool invalidates_windows_well = true;
  /// A read's sink must be open to writes of peers. An RNIC requires it: mr::rights_for_iwarp().
  bool read_sinks_need_remote_write = false;
  /// A queue pair needs the right to bind windows. Among the devices with windows of type 1, iw_cxgb4 checks it.
  bool pair_needs_right_to_bind = false;
  /// The bits of ibv_wc::wc_flags that report an invalidated key in a receive of a reliable connection. rxe passes on
  /// the kernel's own bit, which equals IBV_WC_IP_CSUM_OK; that flag means nothing on such a connection.
  unsigned invalidated_flags = IBV_WC_WITH_INV;

  // ---- connecting and disconnecting ----

  /// GIDs hold the hardware addresses of network interfaces, as on an RNIC. On RoCE they hold IP addresses.
  bool gids_are_hardware_addresses = false;
  /// The kernel changes the queue pair's state when it connects and disconnects. It does so for an RNIC, because it
  /// attaches the TCP connection to the pair.
  bool kernel_drives_pair = false;
  /// rdma_connect(3) may block until the peer answers, because siw establishes its TCP connection inside the call.
  bool connect_blocks = false;
  /// The machine's TCP uses the same ports. On an RNIC the connection manager may choose a port that it believes to be
  /// free although TCP has it in use.
  bool shares_ports_with_tcp = false;
  /// The connecting end has to send first, as an RNIC requires: RFC 5044 section 7.1.2.
  bool initiator_speaks_first = false;
  /// rdma_disconnect(3) ends both directions at once, and flushes the peer's requests in flight: an RNIC closes TCP.
  bool disconnect_ends_both_ways = false;
  /// Requests may be flushed before the connection manager reports that the connection has ended. An RNIC flushes as
  /// soon as TCP has ended.
  bool flushes_before_disconnect_event = false;

  // ---- requests ----

  /// Completions come in the order of the requests. siw completes a read after requests that were posted behind it, so
  /// one completion implies nothing about others.
  bool completes_in_order = true;
  /// A completion of a write or a message means that the peer has answered. With an RNIC it may mean only that TCP has
  /// taken the bytes.
  bool completes_on_answer = true;
  /// Retransmits only what it must after a packet loss. rxe also retransmits all requests posted behind the lost one.
  bool repeats_requests_well = true;
  /// Copies all parts of a request that goes inline. Before rdma-core 44, irdma's driver in user space copies the first
  /// part alone, and nothing tells which of its versions runs.
  bool inlines_all_parts = true;
  /// A zero-length read does no harm. siw answers one that arrives while it sends with part of the data that it sends,
  /// which breaks the connection; other RNICs are not known to differ.
  bool may_read_nothing = true;

  // ---- receives ----

  /// Makes a message wait for a receive. An RNIC ends the connection when a message finds none: RFC 5041 section 7.1.
  bool messages_wait_for_receives = true;
  /// Distinguishes a peer that has no receive for a message from a peer that does not answer. rxe does not, and on an
  /// RNIC no message waits.
  bool tells_busy_peer_from_dead = true;
  /// Reports when a queue pair in ERR has given back its last shared receive: InfiniBand specification, 11.6.3.1. rxe
  /// does not, and an RNIC need not.
  bool announces_last_receive = true;

  [[nodiscard]] bool has_windows() const noexcept { return windows != window_kind::none; }
  /// Whether a window is open to one queue pair only, whose peer can also revoke it.
  [[nodiscard]] bool has_windows_of_one_peer() const noexcept {
    return has_windows() && windows != window_kind::type_1;
  }
  /// Whether an invalidated window is bound again, rather than replaced by a new one.
  [[nodiscard]] bool reuses_windows() const noexcept {
    return has_windows_of_one_peer() && checks_window_bounds && invalidates_windows_well;
  }
};

/// The facts about the device with these attributes of ibv_query_device(3).
[[nodiscard]] device_traits traits_of(ibv_transport_type transport, const ibv_device_attr& attributes) noexcept;

/// All traits, for a person who looks for the cause of a fault: {"windows", "type_2b"}, {"heeds_iova", "yes"}.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> names_and_values(const device_traits& traits);

}  // namespace weft::net::verbs
