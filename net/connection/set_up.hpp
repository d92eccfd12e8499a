// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/connection/native_protocol.hpp>
#include <weft/net/connection/shared_receive_state.hpp>
#include <weft/net/options.hpp>
#include <weft/net/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/observe/report.hpp>

#include <fmt/core.h>

#include <cstdint>
#include <exception>
#include <source_location>

namespace weft::net {

/// Throws errc::invalid_argument for depths and sizes that no connection can have.
inline void check_sizes(const connection_options& options) {
  const auto refuse = [](std::uint16_t depth) { return depth == 0 || depth > max_depth; };
  if (refuse(options.receive_depth) || refuse(options.send_depth)) {
    throw error(errc::invalid_argument, fmt::format("receive_depth and send_depth are from 1 to {}", max_depth));
  }
  if (options.receive_size > greeting::largest_receive_size) {
    throw error(errc::invalid_argument, fmt::format("receive_size is at most {}", greeting::largest_receive_size));
  }
}

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

/// Reports the exception at hand: a peer's set-up has failed, and nobody waits for that peer alone.
inline void report_failed_set_up(const std::exception& why,
                                 std::source_location where = std::source_location::current()) noexcept {
  report what;
  what.kind = report_kind::failure;
  what.text = why.what();
  what.task = "accept";
  what.origin = where;
  what.failure = std::current_exception();
  send_report(what);
}

}  // namespace weft::net
