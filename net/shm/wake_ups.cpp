// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/packets.hpp>
#include <weft/net/shm/wake_ups.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

namespace weft::net::shm {
namespace {

// Once this many packets have arrived, some are read. The smallest buffer that a socket can have holds six packets.
constexpr unsigned wake_ups_unread = 4;
// How many packets are read in search of an offer's file. An honest peer sends few before the file. A peer that goes on
// sending must not keep this end busy.
constexpr unsigned packets_before_a_file = 256;

}  // namespace

void wake_ups::arrived() noexcept {
  if (++unread_ < wake_ups_unread) return;
  unread_ = 0;
  for (unsigned i = 0; i < 2 * wake_ups_unread; ++i) {
    descriptor file;
    if (!take(file)) return;
    if (file && !offered_file_) offered_file_ = std::move(file);
  }
}

descriptor wake_ups::take_file(bool* lost) noexcept {
  descriptor file = std::move(offered_file_);
  for (unsigned i = 0; i < packets_before_a_file && !file && take(file); ++i) {
  }
  *lost = std::exchange(lost_file_, false);
  return file;
}

// Reads a packet; false if there is none, or the socket has ended or failed. ECONNRESET counts as a packet: ahead of
// the packets that are there, the kernel reports once that the peer has died without reading all that was sent to it.
bool wake_ups::take(descriptor& file) noexcept {
  std::array<std::byte, 1> room{};
  const packet got = take_packet(socket_, room, {&file, 1});
  if (got.lost_descriptors) lost_file_ = true;
  return got.failure == -ECONNRESET || (got.failure == 0 && got.length != 0);
}

}  // namespace weft::net::shm
