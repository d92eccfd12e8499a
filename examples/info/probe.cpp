// SPDX-License-Identifier: Apache-2.0
#include "probe.hpp"

#include <weft/runtime/error.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <future>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "fabric_devices.hpp"
#include "packets.hpp"
#include "protocol.hpp"
#include "server.hpp"
#include <common/printable.hpp>

namespace info {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::uint64_t most_round_trips = 200;
constexpr std::uint32_t round_trip_bytes = 64;
// On both sides of the usual limits of a packet: RDMA MTUs, 1500, 9000.
constexpr std::array<std::uint32_t, 11> message_sizes = {
    64, 256, 512, 1024, 1400, 2048, 4096, 8192, 8900, 16384, most_message_bytes};
constexpr unsigned transfers = 16;  // of memory_bytes each: 4 MiB each way
constexpr std::uint64_t flushed_seed = 2 * transfers + 1;

bool is_system(const weft::error& why, std::errc code) { return why.code() == code; }

reach_failure kind_of(const weft::error& why, bool over_shm) {
  if (why.code() == weft::errc::invalid_address)
    return over_shm ? reach_failure::elsewhere : reach_failure::bad_address;
  if (is_system(why, std::errc::connection_refused))
    return over_shm ? reach_failure::elsewhere : reach_failure::refused;
  if (why.code() == weft::errc::timed_out || is_system(why, std::errc::timed_out)) return reach_failure::silent;
  if (is_system(why, std::errc::host_unreachable) || is_system(why, std::errc::network_unreachable) ||
      is_system(why, std::errc::network_down) || is_system(why, std::errc::no_such_device) ||
      is_system(why, std::errc::address_not_available)) {
    return reach_failure::unreachable;
  }
  if (why.code() == weft::errc::wrong_device) return over_shm ? reach_failure::elsewhere : reach_failure::wrong_device;
  if (why.code() == weft::errc::peer_rejected || is_system(why, std::errc::no_buffer_space))
    return reach_failure::rejected;
  if (why.code() == weft::errc::protocol_error || why.code() == weft::errc::peer_vanished ||
      why.code() == weft::errc::malformed || is_system(why, std::errc::connection_reset)) {
    return reach_failure::not_weft;
  }
  return reach_failure::other;
}

/// One attempt over one fabric.
class attempt {
 public:
  /// `where` is what the address means, for packets of UDP.
  attempt(weft::net::device& device, const std::string& address, const weft::socket_address& where,
          const probe_options& options, reach& found, peer_report& report)
      : device_(device),
        address_(address),
        where_(where),
        patience_(options.patience),
        all_operations_(options.all_operations),
        found_(found),
        report_(report) {}

  weft::task<> run();

 private:
  weft::task<> try_everything(weft::net::connection& peer);
  weft::task<> try_all_operations(weft::net::connection& peer, const weft::mr::remote_region& memory);
  weft::task<> note(const char* name, weft::task<> operation);
  weft::task<introduction> meet(weft::net::connection& peer);
  weft::task<> measure_round_trips(weft::net::connection& peer);
  weft::task<> climb_sizes(weft::net::connection& peer);
  weft::task<> write(weft::net::connection& peer, const weft::mr::remote_region& memory);
  weft::task<> read(weft::net::connection& peer, const weft::mr::remote_region& memory);
  weft::task<> flush(weft::net::connection& peer, const weft::mr::remote_region& memory);
  weft::task<> fetch(weft::net::connection& peer, const weft::mr::remote_region& memory);
  weft::task<> expose(weft::net::connection& peer);
  weft::task<> write_and_check(weft::net::connection& peer, const weft::mr::remote_region& memory, std::uint64_t seed);
  weft::task<> fill_and_read(weft::net::connection& peer, const weft::mr::remote_region& memory, std::uint64_t seed);
  weft::task<> echo(weft::net::connection& peer, std::uint32_t size);
  weft::task<request> ask(weft::net::connection& peer, request what);

  weft::net::device& device_;
  const std::string& address_;
  const weft::socket_address& where_;
  std::chrono::milliseconds patience_;
  bool all_operations_;
  reach& found_;
  peer_report& report_;
};

tried_operation tried(std::string_view name, const weft::error& why) {
  const bool refused = why.code() == weft::errc::not_supported;
  return {std::string(name), refused ? outcome::refused : outcome::failed, common::printable(why.what())};
}

// One that is stopped stays as it is noted at first: its time was over with that of all the others.
weft::task<> attempt::note(const char* name, weft::task<> operation) {
  const std::size_t mine = found_.operations.size();
  found_.operations.push_back({.name = name, .words = "it has not ended in time"});
  try {
    co_await std::move(operation);
    found_.operations[mine].result = outcome::passed;
    found_.operations[mine].words.clear();
  } catch (const weft::error& why) {
    if (why.code() != weft::errc::canceled) found_.operations[mine] = tried(name, why);
    throw;
  }
}

weft::task<> attempt::run() {
  weft::net::connection_options options;
  options.receive_size = most_message_bytes;
  options.receive_depth = messages_at_a_time;
  options.set_up_timeout = patience_;
  options.close_timeout = std::chrono::milliseconds(500);
  options.private_data = greeting();
  const auto begin = clock::now();
  std::optional<weft::net::connection> peer;
  try {
    peer.emplace(co_await device_.connect(address_, options));
  } catch (const weft::error& why) {
    found_.why = kind_of(why, device_.name() == "shm");
    found_.failure = common::printable(why.what());
    found_.operations.push_back(tried("connect", why));
    co_return;
  }
  found_.operations.push_back({.name = "connect", .result = outcome::passed});
  found_.connected = true;
  found_.set_up = clock::now() - begin;
  if (!is_greeting(peer->peer_private_data())) {
    found_.stranger = "another weft program";
    co_return;
  }
  co_await try_everything(*peer);
}

weft::task<> attempt::try_everything(weft::net::connection& peer) {
  const char* step = "the peer's introduction";
  bool ended_well = true;
  std::optional<weft::mr::remote_region> memory;
  try {
    const introduction first = co_await meet(peer);
    memory = first.memory;
    found_.speaks = true;
    report_.words = first.words;
    const bool has_way = device_.name() != "shm" && where_.size() != 0;
    if (first.answers_packets && !report_.mtu.was_probed && has_way) {
      path_mtu mtu = report_.mtu;
      const auto probe = [&] { probe_mtu(where_, first.token, mtu); };
      co_await weft::offload(probe);
      report_.mtu = mtu;
    }
    step = "small messages";
    co_await note("send", measure_round_trips(peer));
    step = "messages of growing size";
    co_await note("send_large", climb_sizes(peer));
    step = "one-sided transfers";
    co_await note("write", write(peer, first.memory));
    co_await note("read", read(peer, first.memory));
  } catch (const weft::error& why) {
    if (why.code() == weft::errc::canceled) throw;
    found_.transfer_failure = fmt::format("{}: {}", step, common::printable(why.what()));
    ended_well = false;
  }
  if (!ended_well) co_return peer.abort();
  if (all_operations_) co_await try_all_operations(peer, *memory);
  try {
    co_await note("close", peer.close());
  } catch (const weft::error& why) {
    if (why.code() == weft::errc::canceled) throw;  // else: all that was wanted has come
  }
}

// Each by itself, as long as the connection lasts.
weft::task<> attempt::try_all_operations(weft::net::connection& peer, const weft::mr::remote_region& memory) {
  const auto try_one = [&](const char* name, weft::task<> operation) -> weft::task<> {
    try {
      co_await note(name, std::move(operation));
    } catch (const weft::error& why) {
      if (why.code() == weft::errc::canceled) throw;
    }
  };
  co_await try_one("flush", flush(peer, memory));
  if (peer.is_open()) co_await try_one("atomic", fetch(peer, memory));
  if (peer.is_open()) co_await try_one("expose", expose(peer));
}

weft::task<introduction> attempt::meet(weft::net::connection& peer) {
  const auto message = co_await weft::with_timeout(patience_, peer.recv_or_throw());
  co_return introduction::unpack(message.bytes());
}

weft::task<> attempt::echo(weft::net::connection& peer, std::uint32_t size) {
  auto question = co_await weft::with_timeout(patience_, device_.allocate(size));
  fill_with_pattern(question.bytes(), size);
  question.data()[0] = static_cast<std::byte>(request_kind::echo);
  co_await weft::with_timeout(patience_, peer.send(std::move(question)));
  const auto answer = co_await weft::with_timeout(patience_, peer.recv_or_throw());
  std::vector<std::byte> expected(size);
  fill_with_pattern(expected, size);
  expected[0] = static_cast<std::byte>(request_kind::echo);
  if (!std::ranges::equal(answer.bytes(), expected)) {
    throw weft::error(weft::errc::malformed, fmt::format("a message of {} bytes came back changed", size));
  }
}

weft::task<> attempt::measure_round_trips(weft::net::connection& peer) {
  std::vector<std::chrono::nanoseconds> times;
  times.reserve(most_round_trips);
  const auto deadline = clock::now() + patience_;
  while (times.size() < most_round_trips && (times.empty() || clock::now() < deadline)) {
    const auto begin = clock::now();
    co_await echo(peer, round_trip_bytes);
    times.push_back(clock::now() - begin);
  }
  std::ranges::sort(times);
  found_.round_trips = times.size();
  found_.round_trip_min = times.front();
  found_.round_trip_median = times[times.size() / 2];
}

weft::task<> attempt::climb_sizes(weft::net::connection& peer) {
  for (const std::uint32_t size : message_sizes) {
    found_.lost_message = size;
    co_await echo(peer, size);
    found_.largest_message = size;
    found_.lost_message = 0;
  }
}

weft::task<request> attempt::ask(weft::net::connection& peer, request what) {
  const auto packed = what.pack();
  co_await weft::with_timeout(patience_, peer.send_bytes(packed));
  const auto answer = co_await weft::with_timeout(patience_, peer.recv_or_throw());
  const request got = request::unpack(answer.bytes());
  if (got.what != what.what) throw weft::error(weft::errc::malformed, "the peer answers another question");
  co_return got;
}

weft::task<> attempt::write_and_check(weft::net::connection& peer, const weft::mr::remote_region& memory,
                                      std::uint64_t seed) {
  auto source = co_await weft::with_timeout(patience_, device_.allocate(memory_bytes));
  fill_with_pattern(source.bytes(), seed);
  const auto target = memory.slice(0, memory_bytes);
  co_await weft::with_timeout(patience_, peer.write(std::move(source), target));
  const request wanted{.what = request_kind::check, .number = seed};
  const request got = co_await ask(peer, wanted);
  if (got.number != request::all_right) {
    throw weft::error(weft::errc::malformed,
                      fmt::format("what was written arrived damaged, from byte {} on", got.number));
  }
  found_.written_bytes += memory_bytes;
}

weft::task<> attempt::fill_and_read(weft::net::connection& peer, const weft::mr::remote_region& memory,
                                    std::uint64_t seed) {
  const request wanted{.what = request_kind::fill, .number = seed};
  static_cast<void>(co_await ask(peer, wanted));
  auto target = co_await weft::with_timeout(patience_, device_.allocate(memory_bytes));
  const auto source = memory.slice(0, memory_bytes);
  co_await weft::with_timeout(patience_, peer.read(target, source));
  if (const auto wrong = find_difference(target.bytes(), seed)) {
    throw weft::error(weft::errc::malformed, fmt::format("what was read arrived damaged, from byte {} on", *wrong));
  }
  found_.read_bytes += memory_bytes;
}

weft::task<> attempt::write(weft::net::connection& peer, const weft::mr::remote_region& memory) {
  for (std::uint64_t seed = 1; seed <= transfers; ++seed) co_await write_and_check(peer, memory, seed);
}

weft::task<> attempt::read(weft::net::connection& peer, const weft::mr::remote_region& memory) {
  for (std::uint64_t seed = 1; seed <= transfers; ++seed) co_await fill_and_read(peer, memory, seed + transfers);
}

// The peer looks after the flush, so that what it sees has got there by that and not by its question's message alone.
weft::task<> attempt::flush(weft::net::connection& peer, const weft::mr::remote_region& memory) {
  auto source = co_await weft::with_timeout(patience_, device_.allocate(memory_bytes));
  fill_with_pattern(source.bytes(), flushed_seed);
  const auto target = memory.slice(0, memory_bytes);
  co_await weft::with_timeout(patience_, peer.write(std::move(source), target));
  co_await weft::with_timeout(patience_, peer.flush(target));
  const request wanted{.what = request_kind::check, .number = flushed_seed};
  const request got = co_await ask(peer, wanted);
  if (got.number != request::all_right) {
    throw weft::error(weft::errc::malformed,
                      fmt::format("what was flushed is not at the peer, from byte {} on", got.number));
  }
}

// Adds to what flush() has left in the first eight bytes, and swaps the sum for something else.
weft::task<> attempt::fetch(weft::net::connection& peer, const weft::mr::remote_region& memory) {
  if (!peer.capabilities().atomics || !memory.allows(weft::mr::usage::atomic_dst)) {
    throw weft::error(weft::errc::not_supported, "the device has no atomic operations");
  }
  const auto word = memory.slice(0, sizeof(std::uint64_t));
  const request wanted{.what = request_kind::fill, .number = flushed_seed};
  static_cast<void>(co_await ask(peer, wanted));
  std::array<std::byte, sizeof(std::uint64_t)> pattern{};
  fill_with_pattern(pattern, flushed_seed);
  std::uint64_t before = 0;
  std::memcpy(&before, pattern.data(), sizeof before);
  const std::uint64_t added_to = co_await weft::with_timeout(patience_, peer.fetch_add(word, 1));
  const std::uint64_t swapped = co_await weft::with_timeout(patience_, peer.compare_swap(word, before + 1, 0));
  if (added_to != before || swapped != before + 1) {
    throw weft::error(weft::errc::malformed, fmt::format("the peer's memory held {:#x}, then {:#x}; it should be {:#x}",
                                                         added_to, swapped, before));
  }
}

// Lets the peer write into a buffer, and revokes the key once the peer is done.
weft::task<> attempt::expose(weft::net::connection& peer) {
  auto memory = co_await weft::with_timeout(patience_, device_.allocate(most_exposed_bytes));
  std::ranges::fill(memory.bytes(), std::byte{0});
  auto exposed = co_await weft::with_timeout(patience_, peer.expose(std::move(memory), weft::mr::usage::write_dst));
  const auto packed = request{.what = request_kind::write, .number = flushed_seed}.pack();
  const auto region = exposed.remote().pack();
  std::vector<std::byte> question(packed.begin(), packed.end());
  question.insert(question.end(), region.begin(), region.end());
  co_await weft::with_timeout(patience_, peer.send_bytes(question));
  const auto answer = co_await weft::with_timeout(patience_, peer.recv_or_throw());
  static_cast<void>(request::unpack(answer.bytes()));
  const auto back = co_await weft::with_timeout(patience_, exposed.revoke());
  if (const auto wrong = find_difference(back.bytes(), flushed_seed)) {
    throw weft::error(weft::errc::malformed,
                      fmt::format("what the peer wrote into exposed memory is damaged, from byte {} on", *wrong));
  }
}

std::uint32_t rdma_mtu_of_fabric(const inventory& all, std::string_view fabric) {
  for (const rdma_device& device : all.rdma) {
    if (fabric != "verbs:" + device.name) continue;
    for (const rdma_port& port : device.ports) {
      if (port.is_active()) return port.active_mtu;
    }
  }
  return 0;
}

/// What is known of a peer's name.
struct looked_up {
  weft::socket_address first{};          // empty: there is none
  std::optional<weft::error> no_answer;  // the resolver's: asking again would take as long
};

bool is_no_answer(const weft::error& why) {
  return why.code() == weft::errc::timed_out || is_system(why, std::errc::resource_unavailable_try_again);
}

// Of what is no name, and of names that nobody knows, each fabric says so in its own words.
looked_up look_up(const machine& here, const std::string& address, std::chrono::milliseconds patience) {
  looked_up found;
  if (address.starts_with("unix:")) return found;
  weft::executor_options options;
  options.system_calls = &here.calls().system();
  weft::executor loop(options);
  try {
    found.first = loop.run(weft::with_timeout(patience, weft::resolve(address, false))).front();
  } catch (const weft::error& why) {
    if (why.code() == weft::errc::timed_out) {
      found.no_answer = weft::error(weft::errc::timed_out, fmt::format("look up {}", address));
    } else if (is_no_answer(why)) {
      found.no_answer = why;
    }
  }
  return found;
}

reach not_looked_up(const std::string& fabric, const weft::error& why) {
  reach found;
  found.fabric = fabric;
  found.why = reach_failure::no_answer_to_name;
  found.failure = common::printable(why.what());
  return found;
}

// A connection that ends before it has said a word can be the end of a listener of Linux's siw (docs/verbs.md): none is
// made unless an answer depends on it, and never where an RDMA device has found somebody.
bool matters_who_takes_tcp(const peer_report& report) {
  const auto is_rdma = [](const reach& each) { return each.fabric.starts_with("verbs"); };
  const auto found_by_rdma = [&](const reach& each) { return is_rdma(each) && each.connected; };
  const auto left_waiting = [&](const reach& each) { return !is_rdma(each) && each.why == reach_failure::silent; };
  return std::ranges::none_of(report.fabrics, found_by_rdma) && std::ranges::any_of(report.fabrics, left_waiting);
}

// The other end's failure tells more than what this end sees of it.
weft::task<> try_both_ends(weft::net::device& device, const std::string& place, const probe_options& options,
                           reach& found) {
  auto listener = co_await weft::with_timeout(options.patience, device.listen(place));
  const std::string address(listener.address());
  const weft::socket_address nowhere;  // no packets of UDP
  peer_report unused;
  attempt one(device, address, nowhere, options, found, unused);
  const auto note = [&](const weft::report& what) noexcept {
    found.operations.push_back({.name = "other_end", .words = common::printable(what.text)});
  };
  const auto run_both = [&](weft::scope& ends) -> weft::task<> {
    ends.spawn(answer_clients(listener, device), "the other end");
    co_await one.run();
    ends.request_stop();
  };
  co_await weft::with_scope(note, run_both);
}

reach refused(const std::string& fabric, const std::string& words) {
  reach found;
  found.fabric = fabric;
  found.why = reach_failure::not_opened;
  found.operations.push_back({.name = "open", .result = outcome::refused, .words = common::printable(words)});
  return found;
}

reach try_itself(const inventory& all, const std::string& fabric, const probe_options& options) {
  const auto is_it = [&](const rdma_device& each) { return fabric == "verbs:" + each.name; };
  const auto device = std::ranges::find_if(all.rdma, is_it);
  const bool is_rdma = device != all.rdma.end();
  if (is_rdma && std::ranges::none_of(device->ports, &rdma_port::is_active)) {
    return refused(fabric, "no port is active");
  }
  const auto places = places_to_listen(all, fabric, is_rdma ? ":0" : "127.0.0.1:0");
  if (places.empty()) return refused(fabric, "no port has an IP address");
  reach found;
  found.fabric = fabric;
  found.rdma_mtu = rdma_mtu_of_fabric(all, fabric);
  try {
    auto opened = open_fabric(fabric);
    weft::executor loop;
    loop.run(weft::with_timeout(3 * options.patience, try_both_ends(opened, places.front(), options, found)));
  } catch (const weft::error& why) {
    found.operations.push_back(tried("all", why));
  }
  return found;
}

}  // namespace

peer_report probe_itself(const inventory& all, const probe_options& options) {
  peer_report report;
  for (const weft::net::fabric_info& each : all.fabrics) {
    if (!is_asked_for(each, options.fabric)) continue;
    if (!each.why_not.empty()) {
      report.fabrics.push_back(refused(each.name, each.why_not));
      continue;
    }
    // With copies, because a thread that hangs outlives this call.
    std::packaged_task<reach()> trying([all, name = each.name, options] { return try_itself(all, name, options); });
    auto result = trying.get_future();
    std::thread worker(std::move(trying));
    if (result.wait_for(4 * options.patience) == std::future_status::ready) {
      worker.join();
      report.fabrics.push_back(result.get());
      continue;
    }
    worker.detach();
    report.still_asks = true;
    reach& hanging = report.fabrics.emplace_back(reach{.fabric = each.name});
    hanging.operations.push_back({.name = "all", .words = "a call to the device's library or driver does not return"});
  }
  return report;
}

void check_itself(const peer_report& itself, findings& found) {
  for (const reach& each : itself.fabrics) {
    for (const tried_operation& one : each.operations) {
      if (one.result != outcome::failed) continue;
      found.fail("self-test " + each.fabric, fmt::format("{}: {}", one.name, one.words),
                 "send this report: weft's authors want to know of every device on which it fails");
      break;
    }
  }
}

peer_report probe_peer(const machine& here, const inventory& all, const std::string& address,
                       const probe_options& options) {
  peer_report report;
  report.address = common::printable(address);
  const looked_up name = look_up(here, address, options.patience);
  if (name.first.size() != 0) report.mtu = look_up_mtu(here, name.first);
  report.still_asks = name.no_answer && name.no_answer->code() == weft::errc::timed_out;
  for (const weft::net::fabric_info& each : all.fabrics) {
    if (!is_asked_for(each, options.fabric)) continue;
    if (name.no_answer && each.why_not.empty()) {
      report.fabrics.push_back(not_looked_up(each.name, *name.no_answer));
      continue;
    }
    reach found;
    found.fabric = each.name;
    found.rdma_mtu = rdma_mtu_of_fabric(all, each.name);
    try {
      if (!each.why_not.empty()) throw weft::error(weft::errc::not_supported, each.why_not);
      auto device = open_fabric(each.name);
      weft::executor loop;
      attempt one(device, address, name.first, options, found, report);
      loop.run(one.run());
    } catch (const weft::error& why) {
      found.why = reach_failure::not_opened;
      found.failure = common::printable(why.what());
    }
    report.fabrics.push_back(std::move(found));
  }
  if (name.first.size() != 0 && matters_who_takes_tcp(report)) {
    report.takes_tcp = takes_tcp(name.first, options.patience);
  }
  return report;
}

}  // namespace info
