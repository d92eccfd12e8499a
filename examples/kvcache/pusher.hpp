// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device_memory.hpp>
#include <weft/net/device.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "protocol.hpp"

namespace kvcache {

struct push_options {
  std::vector<std::string> addresses;
  std::uint64_t sequences = 10;
  shape of{.pages = 64, .layers = 4, .block_bytes = 65536};
  weft::duration patience = std::chrono::seconds(30);
  weft::mr::memory_device* gpu = nullptr;  ///< whose memory the sequences are computed in; null: the host's
};

/// Computes sequences, and pushes each to all receivers. One line for each sequence, and one for each that a receiver
/// has not accepted. A receiver that is lost is left out from then on. Yields how many were lost, and sequences
/// refused.
[[nodiscard]] weft::task<std::size_t> push(weft::net::device& device, push_options options);

}  // namespace kvcache
