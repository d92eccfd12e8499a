// SPDX-License-Identifier: Apache-2.0
// A process sends any packet in place of a frame: it is refused, or it is a frame whose numbers are possible and which
// is the same packet when it is sent on.
#include <weft/net/shm/channel.hpp>
#include <weft/net/shm/handshake.hpp>

#include "input.hpp"

namespace {

using namespace weft::net::shm;
using weft::fuzz::require;

void check_parameters(const frame& what) {
  const bool has_rings = what.kind == frame_kind::hello || what.kind == frame_kind::accept;
  require(has_rings == (what.ring_bytes != 0), "a ring has a length where there are rings");
  require(what.ring_bytes <= channel::max_ring_bytes, "no ring is longer than one can be");
  require((what.ring_bytes & (what.ring_bytes - 1)) == 0, "the length of a ring is a power of two");
  require(what.private_bytes <= frame::max_private_bytes, "private data fits");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto packet = std::as_bytes(std::span(data, size));
  frame found;
  switch (unpack(packet, found)) {
    case frame_status::good: {
      check_parameters(found);
      std::array<std::byte, frame::max_bytes> again;
      const auto length = pack(found, again);
      require(std::ranges::equal(std::span(again).first(length), packet), "a frame is the packet that it came from");
      break;
    }
    case frame_status::other_version:
      require(found.version != frame::spoken_version, "another version is another");
      break;
    case frame_status::foreign:
    case frame_status::malformed:
      require(found == frame(), "what is refused is not looked at");
      break;
  }
  return 0;
}
