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
  is_reported,  ///< next() throws its errors, and goes on
  is_left_out,  ///< they go on without it; the errors of the last one are thrown
};

/// Joins the listeners of several fabrics into one, which yields the requests of all. Its address is that of the first
/// listener. It is closed as soon as one of them is.
[[nodiscard]] std::unique_ptr<link_listener> join_listeners(std::vector<fabric_listener> parts, failed_listener one);

}  // namespace weft::net
