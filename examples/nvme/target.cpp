// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/io/socket_address.hpp>

#include <fmt/core.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include <common/printable.hpp>
#include <nvme/queue.hpp>
#include <nvme/queue_handle.hpp>
#include <nvme/sizes.hpp>
#include <nvme/target.hpp>

namespace nvme {

using weft::task;

namespace {

void check(bool holds, const std::string& words) {
  if (!holds) throw std::invalid_argument(words);
}

void check(const limits& most, weft::mr::pool& pool) {
  check(most.queue_entries >= 2 && most.queue_entries <= 1024,
        fmt::format("queues of {} entries: there are 2 to 1024", most.queue_entries));
  check(most.io_queues >= 1 && most.io_queues <= 1024,
        fmt::format("{} I/O queues for a host: there are 1 to 1024", most.io_queues));
  check(most.in_capsule_bytes % 16 == 0 && most.in_capsule_bytes <= (std::uint32_t{1} << 20),
        fmt::format("{} of data in a capsule: it is a multiple of 16 bytes, and at most 1 MiB",
                    format_size(most.in_capsule_bytes)));
  check(most.max_transfer_bytes() <= pool.max_buffer_bytes(),
        fmt::format("commands of {}: the largest buffer of the pool has {}", format_size(most.max_transfer_bytes()),
                    format_size(pool.max_buffer_bytes())));
  const std::size_t capsule = command_bytes + most.in_capsule_bytes;
  check(pool.max_buffers(capsule, weft::mr::budget::receive) > std::size_t{2} * most.queue_entries,
        fmt::format("queues of {} commands with {} of data each: the pool has no room for two of them",
                    most.queue_entries, format_size(most.in_capsule_bytes)));
}

bool is_wildcard(std::string_view host) { return host.empty() || host == "0.0.0.0" || host == "::"; }

// The address from which the kernel would answer `peer`: what a datagram socket is bound to once it is connected, which
// sends nothing. Empty if it does not say.
std::string local_address_towards(const std::string& peer) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(peer.c_str(), "9", &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> held(found, &::freeaddrinfo);
  const weft::descriptor socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), weft::system_calls::kernel());
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  std::array<char, NI_MAXHOST> text{};
  if (!socket || ::connect(socket.fd(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&own), length, text.data(), text.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return {};
  return text.data();
}

std::string host_of(std::string_view address) {
  try {
    return weft::parse_host_and_port(address).host;
  } catch (const weft::error&) {  // of a peer in shared memory, for instance
    return {};
  }
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

target::target(weft::net::device& device, const subsystem& served, target_options options)
    : device_(device), served_(served), options_(std::move(options)), controllers_(options_.most) {
  check(options_.most, device_.pool());
  check(!served_.all().empty(), "a subsystem without a namespace");
}

task<> target::serve(weft::net::listener& listener) {
  listens_at_ = listener.address();
  std::size_t count = 0;
  const auto all = [&](weft::scope& queues) -> task<> {
    while (auto request = co_await listener.next()) {
      weft::executor_group* const others = options_.others;
      weft::executor* const where = others != nullptr ? &(*others)[count++ % others->size()] : nullptr;
      queues.spawn(attend(std::move(*request), where));
    }
  };
  co_await weft::with_scope(weft::on_failure::report, all);
}

task<> target::attend(weft::net::connection_request request, weft::executor* where) {
  const std::string peer(request.peer());
  auto served = attend_here(std::move(request));
  std::string trouble;
  try {
    if (where != nullptr) {
      co_await weft::run_on(*where, std::move(served));
    } else {
      co_await std::move(served);
    }
  } catch (const weft::error& why) {
    if (why.code() == weft::errc::canceled) throw;
    trouble = why.what();
  } catch (const std::exception& why) {
    trouble = why.what();
  }
  if (!trouble.empty()) say(fmt::format("{}: {}", peer, common::printable(trouble)));
}

task<> target::attend_here(weft::net::connection_request request) {
  const auto wanted = decode_cm_request(request.private_data());
  if (const auto refused = refuse(wanted, most())) {
    say(fmt::format("{} is turned away: {}", request.peer(), words_of(*refused)));
    const auto words = encode(cm_rejection{.reason = *refused});
    co_await request.reject(words);
    co_return;
  }
  const auto entries = static_cast<std::uint16_t>(wanted->send_queue_size + 1);
  const auto answer = encode(cm_reply{.receive_queue_size = entries});
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

void target::add(const std::shared_ptr<queue_handle>& what) {
  const std::lock_guard lock(lock_);
  queues_.insert(what);
  if (draining_) queue_handle::drain(what);  // its connection was being set up
}

void target::remove(const std::shared_ptr<queue_handle>& what) {
  const std::lock_guard lock(lock_);
  if (queues_.erase(what) != 0) of_ended_queues_ += what->counters.now();
}

void target::drain() {
  const std::lock_guard lock(lock_);
  draining_ = true;
  for (const auto& each : queues_) queue_handle::drain(each);
}

void target::abort() {
  const std::lock_guard lock(lock_);
  for (const auto& each : queues_) queue_handle::abort(each);
}

task<> target::look_again() {
  constexpr std::uint8_t notice = 2;
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
      if (listening->is_discovery()) continue;
      listening->note_change(each.id());
      listening->notify({.type = notice, .page = static_cast<std::uint8_t>(log_page::changed_namespaces)});
    }
  }
}

queue_counters::values target::counters() const {
  const std::lock_guard lock(lock_);
  queue_counters::values sum = of_ended_queues_;
  for (const auto& each : queues_) sum += each->counters.now();
  return sum;
}

discovery_log target::discover(std::string_view peer) const {
  const auto where = weft::parse_host_and_port(options_.advertised.empty() ? listens_at_ : options_.advertised);
  discovery_entry found{.port_id = 1, .service = where.port, .subsystem = served_.nqn(), .address = where.host};
  if (is_wildcard(where.host)) found.address = local_address_towards(host_of(peer));
  found.family = found.address.find(':') == std::string::npos ? address_family::ipv4 : address_family::ipv6;
  discovery_log log{.generation = 1, .entries = {}};
  if (!found.address.empty()) log.entries.push_back(std::move(found));
  return log;
}

}  // namespace nvme
