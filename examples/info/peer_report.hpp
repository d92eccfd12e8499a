// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace info {

/// Why a fabric does not reach a peer.
enum class reach_failure : std::uint8_t {
  none,
  not_opened,         ///< this end cannot use the fabric
  refused,            ///< nobody listens there over this fabric
  silent,             ///< no answer in time
  unreachable,        ///< no way leads there
  wrong_device,       ///< the way leads over another device
  elsewhere,          ///< the peer is not on this machine, for shared memory
  not_weft,           ///< something answers that does not speak the fabric's protocol
  rejected,           ///< a weft program that wants no such peer
  bad_address,        ///< it is no HOST:PORT, or the host is not known
  no_answer_to_name,  ///< whoever knows the addresses of names does not answer
  other,
};

enum class outcome : std::uint8_t {
  passed,
  refused,  ///< weft or the device says that it cannot do this
  failed,
};

/// What came of one operation.
struct tried_operation {
  std::string name{};
  outcome result = outcome::failed;
  std::string words{};  ///< why it has not passed, printable
};

/// What came of one fabric on the way to a peer.
struct reach {
  std::string fabric{};
  bool connected = false;
  reach_failure why = reach_failure::none;
  std::string failure{};                             ///< the words of it; a peer's are printable
  std::optional<std::chrono::nanoseconds> set_up{};  ///< how long connecting took
  bool speaks = false;                               ///< the peer is `weft-info serve`
  std::string stranger{};                            ///< what else it is, as far as it says
  std::uint64_t round_trips = 0;
  std::chrono::nanoseconds round_trip_min{};
  std::chrono::nanoseconds round_trip_median{};
  std::uint32_t largest_message = 0;  ///< that has come back unharmed, in bytes
  std::uint32_t lost_message = 0;     ///< the smallest that has not; 0: none
  std::uint64_t written_bytes = 0;    ///< one-sided, and found right at the peer
  std::uint64_t read_bytes = 0;       ///< one-sided, and found right here
  std::string transfer_failure{};
  std::vector<tried_operation> operations{};  ///< in the order in which they were tried
  std::uint32_t rdma_mtu = 0;                 ///< of the device's port, in bytes; 0: not known
};

/// What a path lets through in one piece.
struct path_mtu {
  std::string interface {};         ///< that leads there; empty: not known
  std::uint32_t interface_mtu = 0;  ///< of the interface that leads there; 0: not known
  std::uint32_t kernel_mtu = 0;     ///< what the kernel knows of the path: IP_MTU; 0: not known
  std::uint32_t probed = 0;         ///< the largest IP packet that went there and back; 0: none did
  bool was_probed = false;          ///< probes were sent
  std::string failure{};            ///< why none were, or none came back
};

struct peer_report {
  std::string address{};
  bool takes_tcp = false;  ///< something there takes connections of plain TCP
  std::string words{};     ///< what the peer says of itself, printable; empty if it is no `weft-info serve`
  std::vector<reach> fabrics{};
  path_mtu mtu{};
  bool still_asks = false;  ///< a worker waits for the addresses of the name, or for a device, and nobody for it
};

}  // namespace info
