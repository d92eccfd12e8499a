// SPDX-License-Identifier: Apache-2.0
// What programs share that run in both of two guests: tests/vm/README.md.
#pragma once

#include <weft/weft.hpp>

#include <cstdlib>

#include "kit/standard.hpp"

namespace weft::test {

/// 1 or 2.
inline int guest_number() {
  const char* number = std::getenv("WEFT_VM_GUEST");
  if (number == nullptr) throw std::runtime_error("this is not one of two guests");
  return std::stoi(number);
}

/// Where guest 1 listens.
inline constexpr const char* first_guest = "10.78.0.1:7471";

/// Runs it as sh(1) does, on a worker: it may stop or kill this process, $PPID.
inline task<> shell(const char* command) {
  const auto work = [command] { return std::system(command); };
  const int status = co_await offload(work);
  if (status != 0) throw std::runtime_error("\"" + std::string(command) + "\" ended with " + std::to_string(status));
}

inline task<> send_bytes(net::device& device, net::connection& peer, std::span<const std::byte> bytes) {
  auto message = co_await device.pool().allocate(bytes.size());
  std::ranges::copy(bytes, message.data());
  co_await peer.send(std::move(message));
}

/// Tells the peer of `own` memory, and hears of the peer's.
inline task<mr::remote_region> exchange(net::device& device, net::connection& peer, const net::exposure& own) {
  const auto packed = own.remote().pack();
  co_await send_bytes(device, peer, packed);
  const auto message = co_await peer.recv_or_throw();
  co_return mr::remote_region::unpack(message.bytes());
}

/// No memory of the pool's is in use any more, and nobody waits for any.
inline void expect_nothing_left(net::device& device) {
  const mr::pool_statistics left = device.pool().statistics();
  for (const mr::budget share : {mr::budget::send, mr::budget::receive}) {
    if (left.of(share).in_use_bytes != 0) throw std::runtime_error("memory of the pool's is still in use");
    if (left.of(share).waiting != 0) throw std::runtime_error("somebody waits for memory still");
  }
}

}  // namespace weft::test
