// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/verbs/domain.hpp>
#include <weft/net/verbs/endpoint.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <memory>
#include <optional>
#include <string>

// Setting a connection up through the connection manager, with one deadline over all steps: see rdma_cm(7). The
// deadline does not cut short what runs on a worker, such as an rdma_connect(3) that blocks.
namespace weft::net::verbs {

/// Connects to an address. The source address is the first of `sources` in the same family, if there are any sources.
/// Throws weft::error, whose text begins with the step if a call to the device or the connection manager has failed.
task<new_link> connect(std::shared_ptr<device> home, std::shared_ptr<domain> memory, const socket_address& target,
                       std::span<const socket_address> sources, const set_up_options& options);

/// Accepts the peer of the connection request `asked`, on the running executor. `traffic_class` is the listener's;
/// that of `options` takes precedence.
task<std::unique_ptr<net::link>> accept(std::shared_ptr<device> home, std::shared_ptr<domain> memory, cm_id id,
                                        const cm_event& asked, const set_up_options& options,
                                        std::optional<std::uint8_t> traffic_class);

/// Sets the traffic class of the packets of an id's connections, if `traffic_class` is given. Call it before resolving
/// the address or listening on it.
void set_traffic_class(rdma_calls& library, cm_id& id, std::optional<std::uint8_t> traffic_class);

[[nodiscard]] socket_address address_of_peer(rdma_cm_id& id);
/// The peer's address: "10.0.0.7:7471".
[[nodiscard]] std::string peer_of(rdma_cm_id& id);

}  // namespace weft::net::verbs
