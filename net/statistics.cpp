// SPDX-License-Identifier: Apache-2.0
#include <weft/net/statistics.hpp>

#include <algorithm>
#include <array>

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
  all.counter("weft_late_accesses_total", "Accesses of peers to memory that had been taken back.", owner,
              what.late_accesses);
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

constexpr std::array all_states{rail_state::absent, rail_state::joining, rail_state::up, rail_state::ending};

void add_rails_in_state(metrics& all, const std::string& rail, rail_state state, std::uint64_t count) {
  all.gauge("weft_rails", "Rails of open connections, by what they are doing.",
            rail + ',' + metrics::label("state", name_of(state)), count);
}

void add_rail_direction(metrics& all, const rail_traffic::direction& what, const std::string& rail,
                        std::string_view direction) {
  const std::string labels = rail + ',' + metrics::label("direction", direction);
  all.counter("weft_rail_requests_total", "Requests, and slices of them, that rails have carried.", labels,
              what.requests);
  all.counter("weft_rail_bytes_total", "Bytes that rails have carried.", labels, what.bytes);
}

void add_rail_control_messages(metrics& all, const std::string& rail, std::string_view direction, std::uint64_t count) {
  all.counter("weft_rail_control_messages_total", "Control messages of rails.",
              rail + ',' + metrics::label("direction", direction), count);
}

void add_rail_traffic(metrics& all, const rail_traffic& what, const std::string& rail) {
  add_rail_direction(all, what.to_peer, rail, "to_peer");
  add_rail_direction(all, what.from_peer, rail, "from_peer");
  all.counter("weft_rail_opened_total", "How often rails have come up.", rail, what.opened);
  all.counter("weft_rail_lost_total", "How often rails have ended while their connections went on.", rail, what.lost);
  all.counter("weft_rail_sent_again_total", "Requests and slices that went again because their rail had ended.", rail,
              what.sent_again);
  add_rail_control_messages(all, rail, "to_peer", what.control_messages_sent);
  add_rail_control_messages(all, rail, "from_peer", what.control_messages_received);
}

void add_rail_rate(metrics& all, const std::string& rail, std::uint64_t bytes_per_second) {
  all.gauge("weft_rail_bytes_per_second", "Rate of rails when they were last busy.", rail, bytes_per_second);
}

void add_rails(metrics& all, const fabric_rail_statistics& what, const std::string& owner) {
  const std::string rail = owner + ',' + metrics::label("rail", what.fabric);
  add_rails_in_state(all, rail, rail_state::absent, what.absent);
  add_rails_in_state(all, rail, rail_state::joining, what.joining);
  add_rails_in_state(all, rail, rail_state::up, what.up);
  add_rails_in_state(all, rail, rail_state::ending, what.ending);
  add_rail_rate(all, rail, what.bytes_per_second);
  add_rail_traffic(all, what.so_far, rail);
}

}  // namespace

std::string_view name_of(rail_state what) noexcept {
  switch (what) {
    case rail_state::absent:
      return "absent";
    case rail_state::joining:
      return "joining";
    case rail_state::up:
      return "up";
    case rail_state::ending:
      return "ending";
  }
  return "?";
}

rail_traffic& rail_traffic::operator+=(const rail_traffic& other) noexcept {
  to_peer.requests += other.to_peer.requests;
  to_peer.bytes += other.to_peer.bytes;
  from_peer.requests += other.from_peer.requests;
  from_peer.bytes += other.from_peer.bytes;
  sent_again += other.sent_again;
  opened += other.opened;
  lost += other.lost;
  control_messages_sent += other.control_messages_sent;
  control_messages_received += other.control_messages_received;
  return *this;
}

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
  late_accesses += other.late_accesses;
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

void add_to(metrics& all, std::span<const rail_statistics> what, std::string_view name) {
  for (const rail_statistics& each : what) {
    const std::string rail = metrics::label("connection", name) + ',' + metrics::label("rail", each.fabric) + ',' +
                             metrics::label("number", std::to_string(each.number));
    for (const rail_state state : all_states) add_rails_in_state(all, rail, state, each.state == state ? 1 : 0);
    const auto since = std::chrono::duration_cast<std::chrono::seconds>(each.since);
    all.gauge("weft_rail_state_seconds", "How long a rail has been in its state.", rail,
              static_cast<std::uint64_t>(since.count()));
    add_rail_rate(all, rail, each.bytes_per_second);
    add_rail_traffic(all, each.so_far, rail);
  }
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
  for (const fabric_rail_statistics& each : what.rails) add_rails(all, each, labels);
}

}  // namespace weft::net
