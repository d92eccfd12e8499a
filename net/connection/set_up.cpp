// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/set_up.hpp>
#include <weft/net/link/receive_slot.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/report.hpp>

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::net {
void check_sizes(const connection_options& options) {
  const auto refuse = [](std::uint16_t depth) { return depth == 0 || depth > max_depth; };
  if (refuse(options.receive_depth) || refuse(options.send_depth)) {
    throw error(errc::invalid_argument, fmt::format("receive_depth and send_depth must be 1 to {}", max_depth));
  }
  if (options.receive_size > greeting::largest_receive_size) {
    throw error(errc::invalid_argument, fmt::format("receive_size must be at most {}", greeting::largest_receive_size));
  }
}

std::uint16_t receives_of(const device_state& device, const connection_options& options) noexcept {
  bool sees_writes = device.domain().capabilities().gates && !options.device_memory;
  for (std::size_t i = 0; i != device.fabrics(); ++i) {
    sees_writes = sees_writes && !device.fabric(i).has_rails(options.resume_within);
  }
  return receives_of(options, sees_writes);
}

set_up_options make_set_up(const device_state& device, const connection_options& options, const greeting_frame& hello,
                           const std::shared_ptr<shared_receive_state>& shared) {
  set_up_options set_up;
  set_up.deadline = later(executor_core::current()->now(), options.set_up_timeout);
  set_up.private_data = hello.data();
  set_up.max_requests = static_cast<std::uint16_t>(options.send_depth + control_requests);
  set_up.max_receives = receives_of(device, options);
  set_up.incoming_reads = options.incoming_reads;
  set_up.outgoing_reads = options.outgoing_reads;
  set_up.interop = options.profile == profile::interop;
  set_up.dead_peer_after = options.dead_peer_after;
  if (shared != nullptr) set_up.receives = std::shared_ptr<receive_queue>(shared, &shared->queue());
  set_up.receive_bytes = receive_bytes(options);
  set_up.source = options.source;
  set_up.traffic_class = options.traffic_class;
  set_up.resume_within = options.resume_within;
  set_up.persistent_flush = options.persistent_flush;
  set_up.max_peer_exposures = options.max_peer_exposures;
  return set_up;
}

task<receive_memory> find_receives(device_state& device, const connection_options& options,
                                   std::shared_ptr<shared_receive_state> shared, time_point deadline) {
  check_sizes(options);
  receive_memory found;
  found.shared = std::move(shared);
  if (found.shared != nullptr) co_return found;
  const std::size_t bytes = receive_bytes(options);
  const std::uint16_t count = receives_of(device, options);
  std::vector<mr::buffer> memory = co_await find_receive_memory(device.pool(), count, bytes, deadline);
  found.own = std::make_shared<own_receives>();
  found.own->slots.resize(memory.size());
  for (std::size_t i = 0; i < memory.size(); ++i) {
    receive_slot& slot = found.own->slots[i];
    slot.work.slot = static_cast<std::uint16_t>(i);
    slot.memory = std::move(memory[i]);
    slot.prepare(bytes);
  }
  co_return found;
}

void report_failed_set_up(const std::exception& why, std::source_location where) noexcept {
  send_report({.kind = report_kind::failure,
               .text = why.what(),
               .task = "accept",
               .origin = where,
               .failure = std::current_exception()});
}

}  // namespace weft::net
