// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace weft::net {

/// The listener of one fabric of a device.
struct fabric_listener {
  fabric_listener(std::size_t place, std::unique_ptr<link_listener> at) noexcept
      : fabric(place), source(std::move(at)) {}

  std::size_t fabric;
  std::unique_ptr<link_listener> source;
};

/// How listeners of other fabrics go on when one listener's device has failed, or was removed.
enum class failed_listener : std::uint8_t {
  is_reported,  ///< next() throws the errors of that listener, and may be called again
  is_left_out,  ///< the others go on without it; next() throws the failure only if no other listener is left
};

/// Joins the listeners of several fabrics, at least one, into one that yields the requests of all. Its address is that
/// of the first listener. It ends as soon as one of them is closed, unless that one is left out.
[[nodiscard]] std::unique_ptr<link_listener> join_listeners(std::vector<fabric_listener> parts, failed_listener one);

}  // namespace weft::net
