// SPDX-License-Identifier: Apache-2.0
// Whether memory that was taken back can still be written: what `weft-conformance late-writer` finds out.
#pragma once

#include <weft/net/device.hpp>

#include "kit/standard.hpp"

namespace weft::test {

/// How memory is taken back from a peer that writes into it all the time.
struct late_writing {
  std::string address;                  ///< of the device, without a port; several of them for rails: "a+b"
  unsigned rounds = 20;                 ///< of each way to take memory back
  unsigned connections = 4;             ///< that write at a time
  unsigned writes = 8;                  ///< in flight on each
  std::size_t bytes = 65'536;           ///< of memory, for each connection; writes have from 8 to all of them
  std::chrono::milliseconds watch{20};  ///< how long the memory is watched once it is back
};

/// What came of one way to take memory back.
struct late_writing_result {
  std::string way;               ///< "by revoke()"
  std::string why_not{};         ///< this device cannot do that; empty if it can
  unsigned times = 0;            ///< that memory was taken back
  unsigned times_unwritten = 0;  ///< of those: no write had come before
  unsigned times_late = 0;       ///< of those: bytes have changed after it was back
  unsigned times_lost = 0;       ///< that a connection was lost before, because a peer was too slow to let go of memory
  std::uint64_t writes = 0;      ///< that were done before
};

/// Opens the device: both ends take it, each on a thread and an executor of its own.
using device_maker = std::function<net::device()>;

/// Tries every way. Throws weft::error if the two ends cannot connect.
[[nodiscard]] std::vector<late_writing_result> write_late(const device_maker& open, const late_writing& how);

/// A table of them, and a sentence. True if writes had come, whichever way the device has, and none has landed late.
bool print_late_writing(const std::vector<late_writing_result>& all);

}  // namespace weft::test
