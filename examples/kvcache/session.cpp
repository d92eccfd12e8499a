// SPDX-License-Identifier: Apache-2.0
#include "session.hpp"

#include <weft/weft.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <string_view>
#include <utility>

namespace kvcache {
namespace {

std::span<const std::byte> greeting() noexcept { return std::as_bytes(std::span(protocol_name)); }

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
  options.private_data = greeting();
  return options;
}

session::session(weft::net::device& device, weft::net::connection peer) : device_(device), peer_(std::move(peer)) {
  if (std::ranges::equal(peer_.peer_private_data(), greeting())) return;
  peer_.abort();
  throw weft::error(weft::errc::protocol_error, fmt::format("{} does not run this version of kvcache", peer_.peer()));
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

weft::task<> session::send(packed_message what) {
  auto payload = co_await device_.allocate(what.bytes().size());
  std::ranges::copy(what.bytes(), payload.data());
  co_await peer_.send(std::move(payload));
}

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
