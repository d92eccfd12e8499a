// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/listener.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "fabric_devices.hpp"
#include "inventory.hpp"

namespace info {

/// Where to listen over a fabric, when the user asks for "HOST:PORT". An RDMA device listens at its own addresses,
/// because its connection manager takes a port at all addresses for one device alone; none if the address is not the
/// device's.
[[nodiscard]] std::vector<std::string> places_to_listen(const inventory& all, std::string_view fabric,
                                                        const std::string& address);

/// A fabric to listen over.
struct served_fabric {
  weft::net::device device;
  std::vector<std::string> addresses;  ///< places_to_listen()
};

inline constexpr std::size_t most_clients = 16;

/// The other end of `weft-info check PEER`: answers up to most_clients at a time at each place, each for a minute at
/// most. Says on the standard output where it listens, and where it cannot. Until it is stopped. Throws weft::error if
/// it can listen over none. `address` is what the user has asked for; a port of 0 becomes the same everywhere.
[[nodiscard]] weft::task<> serve(std::vector<served_fabric>& fabrics, std::string address);

/// Answers the clients of one listener, one after the other, and prints nothing: the other end of a check within one
/// process. Until it is stopped, or a client fails.
[[nodiscard]] weft::task<> answer_clients(weft::net::listener& listener, weft::net::device& device);

}  // namespace info
