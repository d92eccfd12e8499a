// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <fmt/core.h>

#include <common/network.hpp>

namespace copy {
std::size_t chunks_of(const weft::mr::budget_statistics& memory) noexcept {
  const std::size_t for_chunks = memory.max_bytes - memory.max_bytes / 4;
  return std::max<std::size_t>(for_chunks / most_chunk_bytes, 1);
}

station::station(weft::net::device& by, weft::duration patience_with_peers, std::chrono::milliseconds resumes_within)
    : device(by),
      patience(patience_with_peers),
      resume_within(resumes_within),
      sending(chunks_of(by.pool().statistics().send), chunks_in_flight),
      receiving(chunks_of(by.pool().statistics().receive), chunks_in_flight) {}

weft::net::connection_options connection_options(weft::duration patience,
                                                 std::chrono::milliseconds resume_within) noexcept {
  const auto time = std::chrono::ceil<std::chrono::milliseconds>(patience);
  weft::net::connection_options options;
  options.receive_size = packed_message::max_bytes;
  options.receive_depth = 4 * chunks_in_flight;
  options.set_up_timeout = time;
  options.dead_peer_after = time;
  options.resume_within = resume_within;
  options.private_data = common::greeting(protocol_name);
  return options;
}

session::session(station& home, weft::net::connection peer) : home_(home), peer_(std::move(peer)) {
  common::require_greeting(peer_, protocol_name, "copy");
}

weft::duration session::patience() const {
  return home_.patience + (peer_.capabilities().resumes ? home_.resume_within : std::chrono::milliseconds(0));
}

weft::task<message> session::receive() {
  const auto received = co_await weft::with_timeout(patience(), peer_.recv_or_throw());
  co_return unpack(received.bytes());
}

weft::task<std::optional<message>> session::receive_if_any() {
  const auto received = co_await weft::with_timeout(patience(), peer_.recv());
  if (!received) co_return std::nullopt;
  co_return unpack(received->bytes());
}

weft::task<> session::send(packed_message what) {
  co_await weft::with_timeout(patience(), peer_.send_bytes(what.bytes()));
}

weft::task<weft::mr::buffer> session::in_buffer(packed_message what) {
  auto memory = co_await home_.device.allocate(what.bytes().size());
  std::ranges::copy(what.bytes(), memory.data());
  co_return memory;
}

weft::error unexpected(const message& what, const char* instead_of) {
  return {weft::errc::protocol_error, fmt::format("the peer sent '{}' instead of {}", name_of(what), instead_of)};
}

}  // namespace copy
