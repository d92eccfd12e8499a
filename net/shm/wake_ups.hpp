// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/descriptor.hpp>

namespace weft::net::shm {

/// The packets on a connection's socket: wake-ups, whose contents mean nothing, and the files of offers.
///
/// The packets are read only from time to time, but long before an honest peer could fill the socket, because such a
/// peer does not wake an end that is awake. A peer that sends more packets fills its own send buffer.
class wake_ups {
 public:
  explicit wake_ups(const descriptor& socket) noexcept : socket_(socket) {}
  wake_ups(const wake_ups&) = delete;
  wake_ups& operator=(const wake_ups&) = delete;

  /// Notes that a packet has arrived at the socket; every few calls, reads some of the packets that are there.
  void arrived() noexcept;
  /// Takes the file of an offer that has arrived. Empty if there is none; `*lost` tells whether the file was lost
  /// because this process had no descriptor for it.
  [[nodiscard]] descriptor take_file(bool* lost) noexcept;

 private:
  [[nodiscard]] bool take(descriptor& file) noexcept;

  const descriptor& socket_;
  unsigned unread_ = 0;      // calls of arrived() since it last read packets
  descriptor offered_file_;  // an offer's file that arrived before the offer was taken
  bool lost_file_ = false;   // an offer's file has arrived, but this process had no descriptor for it
};

}  // namespace weft::net::shm
