// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "script.hpp"

namespace weft::sim {

struct outcome {
  std::uint64_t trace = 0;       ///< the same for two runs that were the same
  std::uint64_t events = 0;      ///< turns of the simulated kernel
  std::uint64_t operations = 0;  ///< that have ended, in whatever way
  std::uint64_t failures = 0;    ///< of these: that had a reason to fail
  std::uint64_t stopped = 0;     ///< of these: that the program has stopped
  std::uint64_t calls = 0;       ///< of the system, that can fail
  std::uint64_t faults = 0;      ///< that have come to pass, calls that failed among them
  duration time{};               ///< virtual
};

/// Where a script is played.
enum class fabric : std::uint8_t {
  simulated,         ///< TCP, with iWARP on it
  simulated_rdma,    ///< an RDMA device, behind the calls into libibverbs and librdmacm
  simulated_memory,  ///< shared memory, with sockets of AF_UNIX
  simulated_rails,   ///< several of the first two under each connection, as the script says
  real,  ///< a device of this machine, in its own time: the script's faults are left out, and nothing repeats
};

struct setting {
  setting(fabric chosen = fabric::simulated) : where(chosen) {}  // NOLINT(google-explicit-constructor): that is enough

  fabric where;
  std::string device = "iwarp";       ///< a real one: for net::device::open()
  std::string address = "127.0.0.1";  ///< its
};

/// Plays a script with the transport as it ships, and checks every promise while it does. What is wrong is told to
/// `give_up`, which does not return.
[[nodiscard]] outcome play(const script& what, const std::function<void(const std::string& why)>& give_up,
                           const setting& where = {});

}  // namespace weft::sim
