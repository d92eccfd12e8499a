// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/native_protocol.hpp>
#include <weft/net/connection/shared_receive_state.hpp>
#include <weft/net/options.hpp>
#include <weft/net/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>

namespace weft::net {

/// What a transport needs of a user's options. The deadline runs from now; `hello` outlives the set-up. `shared` may be
/// null.
[[nodiscard]] inline set_up_options make_set_up(const connection_options& options, const greeting_frame& hello,
                                                const std::shared_ptr<shared_receive_state>& shared) {
  set_up_options set_up;
  set_up.deadline = later(executor_core::current()->now(), options.set_up_timeout);
  set_up.private_data = hello.data();
  set_up.most_requests = static_cast<std::uint16_t>(options.send_depth + control_requests);
  set_up.most_receives = receives_of(options);
  set_up.incoming_reads = options.incoming_reads;
  set_up.outgoing_reads = options.outgoing_reads;
  set_up.checksum = options.checksum;
  set_up.interop = options.profile == profile::interop;
  set_up.dead_peer_after = options.dead_peer_after;
  if (shared != nullptr) set_up.receives = std::shared_ptr<receive_queue>(shared, &shared->queue());
  set_up.source = options.source;
  set_up.traffic_class = options.traffic_class;
  return set_up;
}

}  // namespace weft::net
