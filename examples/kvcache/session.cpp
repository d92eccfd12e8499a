// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <weft/weft.hpp>

#include <fmt/core.h>

#include <chrono>
#include <utility>

#include <common/network.hpp>

namespace kvcache {
namespace {

message meaning_of(const weft::net::message& received) {
  if (received.immediate && received.size() == 0) return layer_message{.number = *received.immediate};
  return unpack(received.bytes());
}

}  // namespace

weft::net::connection_options connection_options(weft::duration patience) noexcept {
  const auto time = std::chrono::ceil<std::chrono::milliseconds>(patience);
  weft::net::connection_options options;
  options.receive_size = packed_message::max_bytes;
  options.set_up_timeout = time;
  options.dead_peer_after = time;
  options.heartbeat = time;
  options.device_memory = true;
  options.private_data = common::greeting(protocol_name);
  return options;
}

session::session(weft::net::connection peer) : peer_(std::move(peer)) {
  common::require_greeting(peer_, protocol_name, "kvcache");
}

weft::task<message> session::receive() {
  const auto received = co_await peer_.recv_or_throw();
  co_return meaning_of(received);
}

weft::task<std::optional<message>> session::receive_if_any() {
  const auto received = co_await peer_.recv();
  if (!received) co_return std::nullopt;
  co_return meaning_of(*received);
}

weft::task<> session::send(packed_message what) { co_await peer_.send_bytes(what.bytes()); }

weft::task<> session::push(const weft::net::block_list& blocks, std::uint32_t number) {
  if (peer_.capabilities().write_immediate) {
    co_await peer_.write(blocks, {.immediate = number});
    co_return;
  }
  // What is sent behind writes is received when they are in place.
  co_await peer_.write(blocks);
  const message announcement = layer_message{.number = number};
  co_await send(pack(announcement));
}

weft::error unexpected(const message& what, const char* instead_of) {
  return {weft::errc::protocol_error, fmt::format("the peer sent '{}' instead of {}", name_of(what), instead_of)};
}

}  // namespace kvcache
