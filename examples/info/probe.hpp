// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "findings.hpp"
#include "inventory.hpp"
#include "machine.hpp"
#include "peer_report.hpp"

namespace info {

struct probe_options {
  std::chrono::milliseconds patience{3000};  ///< with each step: looking its name up, connecting, a message, a transfer
  std::string fabric{};                      ///< try this one alone; empty: all that can be opened
  bool all_operations = false;               ///< flushes, atomic operations and exposed memory as well
};

/// Tries to reach a peer over each fabric, and what passes: small messages, large ones, one-sided transfers, packets.
/// Blocks; each step has an end. Never throws because of a peer.
[[nodiscard]] peer_report probe_peer(const machine& here, const inventory& all, const std::string& address,
                                     const probe_options& options);

/// What that means.
void check_peer(const inventory& all, const peer_report& peer, findings& found);

/// Tries each fabric with both ends in this process: an RDMA device at an address of its own, the others at the
/// loopback's. Blocks, for at most four times the patience with each: a device that hangs in a call to its driver is
/// left to a thread of its own (peer_report::still_asks). Never throws because of a device.
[[nodiscard]] peer_report probe_itself(const inventory& all, const probe_options& options);

/// What came of that, of each fabric on which an operation failed.
void check_itself(const peer_report& itself, findings& found);

}  // namespace info
