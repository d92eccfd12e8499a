// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device_memory.hpp>
#include <weft/net/device.hpp>
#include <weft/net/listener.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <cstdint>

namespace kvcache {

struct serve_options {
  std::uint32_t pages = 1024;  ///< of the cache
  std::uint32_t layers = 4;
  std::uint64_t block_bytes = 65536;                             ///< a page has one block for each layer
  weft::duration patience = std::chrono::seconds(30);            ///< with a pusher
  weft::duration wait_for_pages = std::chrono::seconds(15);      ///< then a sequence is refused; less than pushers wait
  std::chrono::milliseconds lend_for{std::chrono::seconds(30)};  ///< then pages are taken back by themselves
  std::uint32_t evict_every = 0;           ///< of so many sequences one is evicted in the middle; 0: none
  weft::mr::memory_device* gpu = nullptr;  ///< whose memory the cache is in; null: the host's
};

/// Receives sequences until it is stopped, from any number of pushers at a time. One line for each sequence.
[[nodiscard]] weft::task<> serve(weft::net::device& device, weft::net::listener& listener, serve_options options);

}  // namespace kvcache
