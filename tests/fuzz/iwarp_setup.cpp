// SPDX-License-Identifier: Apache-2.0
// Whatever a stranger says during set-up: both machines end in a clean state, however TCP cuts it.
#include <weft/net/iwarp/handshake.hpp>
#include <weft/net/iwarp/mpa.hpp>
#include <weft/net/iwarp/rdmap.hpp>

#include "input.hpp"

namespace {

using namespace weft::net::iwarp;
using weft::fuzz::require;

/// Feeds everything in pieces; returns how much was taken.
template <class Side>
std::size_t feed(Side& side, std::span<const std::byte> wire, std::size_t piece) {
  std::size_t used = 0;
  while (used < wire.size()) {
    const auto front = wire.subspan(used).first(std::min(piece, wire.size() - used));
    const std::size_t taken = side.consume(front);
    require(taken <= front.size(), "no more is taken than there is");
    used += taken;
    if (taken == 0) break;
  }
  return used;
}

void require_clean(handshake& side) {
  const bool is_bad = side.state() == handshake_state::failed || side.state() == handshake_state::rejected;
  require(is_bad == !side.error().empty(), "an error has words, and nothing else has");
  require(side.output().size() <= mpa::max_frame_bytes + 128, "the output is bounded");
  side.sent(side.output().size());
  require(side.output().empty(), "what is sent is gone");
  side.end_of_stream();
  require(side.state() != handshake_state::waiting, "nobody waits for a peer that is gone");
}

void try_both(std::span<const std::byte> wire, std::size_t piece, std::uint8_t flags) {
  const std::uint8_t revision = (flags & 1) != 0 ? 1 : 2;
  const auto depth = static_cast<std::uint16_t>(flags);
  initiator whole_client({.ird = depth, .ord = depth, .revision = revision});
  initiator client({.ird = depth, .ord = depth, .revision = revision});
  const std::size_t taken = feed(client, wire, piece);
  require(feed(whole_client, wire, wire.size()) >= taken || client.state() == handshake_state::failed,
          "a frame is as long in pieces as it is in one");
  require(client.state() == whole_client.state(), "the outcome does not depend on the pieces");
  require_clean(client);
  require_clean(whole_client);

  responder server({.ird = depth, .ord = depth});
  feed(server, wire, piece);
  if (server.state() == handshake_state::requested)
    require((flags & 2) != 0 ? server.accept(wire.first(std::min<std::size_t>(wire.size(), 508))) : server.reject({}),
            "a request can be answered");
  require_clean(server);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::fuzz::input in(data, size);
  const std::uint8_t flags = in.byte();
  const std::size_t piece = 1 + in.below(64);
  const auto wire = in.run(in.size());
  try_both(wire, piece, flags);

  if (const auto message = parse_terminate(wire)) {
    require(!describe(message->code).empty(), "every cause has words");
    std::array<std::byte, terminate_message::max_bytes> out;
    const auto again = parse_terminate(std::span(out).first(encode(*message, out)));
    require(again && again->segment_header_bytes == message->segment_header_bytes, "a Terminate survives the wire");
  }
  return 0;
}
