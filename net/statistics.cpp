// SPDX-License-Identifier: Apache-2.0
#include <weft/net/statistics.hpp>

#include <algorithm>
#include <string>

namespace weft::net {
namespace {

void add_operations(metrics& all, const connection_statistics::operations& what, const std::string& owner,
                    std::string_view kind) {
  const std::string labels = owner + ',' + metrics::label("kind", kind);
  all.counter("weft_operations_total", "Operations that were posted.", labels, what.posted);
  all.counter("weft_operation_bytes_total", "Bytes of the operations that were posted.", labels, what.bytes);
  all.counter("weft_operations_failed_total", "Posted operations that failed.", labels, what.failed);
}

void add_connection(metrics& all, const connection_statistics& what, const std::string& owner) {
  add_operations(all, what.sends, owner, "send");
  add_operations(all, what.writes, owner, "write");
  add_operations(all, what.reads, owner, "read");
  add_operations(all, what.flushes, owner, "flush");
  add_operations(all, what.atomics, owner, "atomic");
  all.counter("weft_credit_waits_total", "Messages that found no room at the peer.", owner, what.waits_for_credits);
  all.counter("weft_messages_received_total", "Messages received.", owner, what.messages_received);
  all.counter("weft_message_bytes_received_total", "Bytes of the messages received.", owner, what.bytes_received);
  all.gauge("weft_operations_in_flight", "Operations posted and not completed.", owner, what.in_flight);
  all.gauge("weft_operations_waiting", "Operations that wait to be posted, for credits or room.", owner, what.waiting);
  all.gauge("weft_retired_exposures", "Exposures and windows that the peer may still use.", owner, what.retired);
  all.gauge("weft_retired_bytes", "Bytes of the exposures and windows that the peer may still use.", owner,
            what.retired_bytes);
  const auto stalled = std::chrono::duration_cast<std::chrono::seconds>(what.stalled);
  all.gauge("weft_operations_stalled_seconds", "How long no operation has completed although some are in flight.",
            owner, static_cast<std::uint64_t>(stalled.count()));
}

void add_failed_set_ups(metrics& all, const std::string& owner, std::string_view step, std::uint64_t count) {
  all.counter("weft_set_ups_failed_total", "Set-ups that have failed.", owner + ',' + metrics::label("step", step),
              count);
}

}  // namespace

connection_statistics::operations& connection_statistics::operations::operator+=(const operations& other) noexcept {
  posted += other.posted;
  bytes += other.bytes;
  failed += other.failed;
  return *this;
}

connection_statistics& connection_statistics::operator+=(const connection_statistics& other) noexcept {
  sends += other.sends;
  writes += other.writes;
  reads += other.reads;
  flushes += other.flushes;
  atomics += other.atomics;
  waits_for_credits += other.waits_for_credits;
  messages_received += other.messages_received;
  bytes_received += other.bytes_received;
  retired += other.retired;
  retired_bytes += other.retired_bytes;
  in_flight += other.in_flight;
  waiting += other.waiting;
  stalled = std::max(stalled, other.stalled);
  return *this;
}

void add_to(metrics& all, const connection_statistics& what, std::string_view name) {
  add_connection(all, what, metrics::label("connection", name));
}

void add_to(metrics& all, const device_statistics& what, std::string_view name) {
  const std::string labels = metrics::label("device", name);
  all.counter("weft_connections_opened_total", "Connections set up.", labels, what.connections_opened);
  all.counter("weft_connections_ended_total", "Connections that have ended.", labels, what.connections_ended);
  all.gauge("weft_connections_open", "Connections that have not ended.", labels, what.connections_open());
  all.gauge("weft_set_ups", "Connections that are being set up.", labels, what.set_ups);
  all.gauge("weft_half_open_peers", "Peers let in that have not sent their request yet.", labels, what.half_open);
  add_failed_set_ups(all, labels, "connect", what.connects_failed);
  add_failed_set_ups(all, labels, "accept", what.accepts_failed);
  add_failed_set_ups(all, labels, "request", what.requests_failed);
  all.counter("weft_accept_errors_total", "Failures of listeners, because of missing descriptors for instance.", labels,
              what.accept_errors);
  add_connection(all, what.of_all(), labels);
}

}  // namespace weft::net
