// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/io/socket_address.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <common/printable.hpp>
#include <nvme/queue.hpp>
#include <nvme/sizes.hpp>
#include <nvme/target.hpp>

namespace nvme {

using weft::task;

namespace {

void check(const limits& most, weft::mr::pool& pool) {
  require(most.queue_entries >= 2 && most.queue_entries <= 1024,
          fmt::format("queues of {} entries: there are 2 to 1024", most.queue_entries));
  require(most.io_queues >= 1 && most.io_queues <= 1024,
          fmt::format("{} I/O queues for a host: there are 1 to 1024", most.io_queues));
  require(most.in_capsule_bytes % 16 == 0 && most.in_capsule_bytes <= (std::uint32_t{1} << 20),
          fmt::format("{} of data in a capsule: it is a multiple of 16 bytes, and at most 1 MiB",
                      format_size(most.in_capsule_bytes)));
  require(most.max_transfer_bytes() <= pool.max_buffer_bytes(),
          fmt::format("commands of {}: the largest buffer of the pool has {}", format_size(most.max_transfer_bytes()),
                      format_size(pool.max_buffer_bytes())));
  const std::size_t capsule = command_bytes + most.in_capsule_bytes;
  require(pool.max_buffers(capsule, weft::mr::budget::receive) > std::size_t{2} * most.queue_entries,
          fmt::format("queues of {} commands with {} of data each: the pool has no room for two of them",
                      most.queue_entries, format_size(most.in_capsule_bytes)));
}

// What to answer a connection request with, or why not.
std::optional<reject_reason> refuse(const std::optional<cm_request>& wanted, const limits& most) {
  if (!wanted) return reject_reason::invalid_length;
  if (wanted->format != 0) return reject_reason::invalid_format;
  if (wanted->queue_id > most.io_queues) return reject_reason::invalid_queue_id;
  const std::uint16_t entries = wanted->queue_id == 0 ? admin_queue_entries : most.queue_entries;
  if (wanted->send_queue_size == 0 || wanted->send_queue_size >= entries) return reject_reason::invalid_send_queue_size;
  if (wanted->receive_queue_size <= wanted->send_queue_size) return reject_reason::invalid_receive_queue_size;
  return std::nullopt;
}

}  // namespace

counters& counters::operator+=(const counters& other) noexcept {
  reads += other.reads;
  writes += other.writes;
  bytes_read += other.bytes_read;
  bytes_written += other.bytes_written;
  in_capsule += other.in_capsule;
  invalidated += other.invalidated;
  others += other.others;
  failed += other.failed;
  return *this;
}

target::target(weft::net::device& device, const subsystem& served, target_options options)
    : device_(device), served_(served), options_(std::move(options)), controllers_(options_.most) {
  check(options_.most, device_.pool());
  require(!served_.all().empty(), "a subsystem without a namespace");
}

task<> target::serve(weft::net::listener& listener) {
  listens_at_ = listener.address();
  const auto all = [&](weft::scope& queues) -> task<> {
    while (auto request = co_await listener.next()) queues.spawn(attend(std::move(*request)));
  };
  co_await weft::with_scope(weft::on_failure::report, all);
}

task<> target::attend(weft::net::connection_request request) {
  const std::string peer(request.peer());
  std::string trouble;
  try {
    co_await attend_to(std::move(request));
  } catch (const weft::error& why) {
    if (why.code() == weft::errc::canceled) throw;
    trouble = why.what();
  } catch (const std::exception& why) {
    trouble = why.what();
  }
  if (!trouble.empty()) say(fmt::format("{}: {}", peer, common::printable(trouble)));
}

task<> target::attend_to(weft::net::connection_request request) {
  const auto wanted = try_decode<cm_request>(request.private_data());
  if (const auto refused = refuse(wanted, most())) {
    say(fmt::format("{} is turned away: {}", request.peer(), words_of(*refused)));
    const auto words = encoded(cm_rejection{.reason = *refused});
    co_await request.reject(words);
    co_return;
  }
  const auto entries = static_cast<std::uint16_t>(wanted->send_queue_size + 1);
  const auto answer = encoded(cm_reply{.receive_queue_size = entries});
  const std::size_t data = wanted->queue_id == 0 ? connect_data::bytes : most().in_capsule_bytes;
  weft::net::connection_options how;
  how.profile = weft::net::profile::interop;
  how.private_data = answer;
  how.receive_size = static_cast<std::uint32_t>(command_bytes + std::max<std::size_t>(data, connect_data::bytes));
  how.receive_depth = static_cast<std::uint16_t>(entries + 1);
  how.send_depth = static_cast<std::uint16_t>(2 * entries);
  // The keep alive timer looks after the host instead: on an RNIC a peer that is not weft could only be asked for a
  // sign of life by a read of nothing, which siw answers with something else while it sends (docs/verbs.md).
  how.dead_peer_after = std::chrono::milliseconds(0);
  auto peer = co_await request.accept(how);
  queue served(*this, std::move(peer), *wanted);
  co_await served.run();
}

void target::add(queue& what) {
  queues_.insert(&what);
  if (draining_) what.drain();  // its connection was being set up
}

void target::remove(queue& what, const nvme::counters& done) {
  queues_.erase(&what);
  of_ended_queues_ += done;
}

void target::drain() {
  draining_ = true;
  for (queue* const each : queues_) each->drain();
}

void target::abort() {
  for (queue* const each : queues_) each->abort();
}

task<> target::look_again() {
  for (const name_space& each : served_.all()) {
    bool changed = false;
    std::string trouble;
    try {
      changed = co_await each.disk().look_again();
    } catch (const std::system_error& why) {
      trouble = why.what();
    }
    if (!trouble.empty()) say(fmt::format("namespace {}: {}", each.id(), trouble));
    if (!changed) continue;
    say(fmt::format("namespace {} has {} now", each.id(), format_size(each.disk().size())));
    for (const auto& listening : controllers_.all()) {
      if (!listening->is_discovery()) listening->note_change(each.id());
    }
  }
}

std::vector<std::byte> target::discover() const {
  const auto where = weft::parse_host_and_port(options_.advertised.empty() ? listens_at_ : options_.advertised);
  const bool is_reachable = !where.host.empty() && where.host != "0.0.0.0" && where.host != "::";
  std::vector<std::byte> page(discovery_header::bytes + (is_reachable ? discovery_entry::bytes : 0));
  encode(discovery_header{.generation = 1, .entries = is_reachable ? 1U : 0U}, page);
  if (!is_reachable) return page;
  discovery_entry found{.port_id = 1, .service = where.port, .subsystem = served_.nqn(), .address = where.host};
  if (found.address.find(':') != std::string::npos) found.family = address_family::ipv6;
  encode(found, std::span(page).subspan(discovery_header::bytes));
  return page;
}

}  // namespace nvme
