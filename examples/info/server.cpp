// SPDX-License-Identifier: Apache-2.0
#include "server.hpp"

#include <weft/runtime/error.hpp>
#include <weft/runtime/scope.hpp>
#include <weft/runtime/system/system_calls.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <span>
#include <utility>

#include "packets.hpp"
#include "protocol.hpp"
#include <common/network.hpp>
#include <common/printable.hpp>

namespace info {
namespace {

using namespace std::chrono_literals;

constexpr auto longest_session = 60s;

std::uint64_t random_number() {
  std::uint64_t number = 0;
  const ssize_t bytes = weft::system_calls::kernel().getrandom(&number, sizeof number, 0);
  if (bytes < 0) throw weft::system_error(static_cast<int>(-bytes), "draw a random number");
  return number;
}

/// A token, for as long as the client is there.
class admission {
 public:
  explicit admission(packet_mirror* mirror) : mirror_(mirror), token_(random_number()) {
    if (mirror_ != nullptr) mirror_->admit(token_);
  }
  admission(const admission&) = delete;
  admission& operator=(const admission&) = delete;
  ~admission() {
    if (mirror_ != nullptr) mirror_->dismiss(token_);
  }
  [[nodiscard]] std::uint64_t token() const noexcept { return token_; }

 private:
  packet_mirror* mirror_;
  std::uint64_t token_;
};

struct surroundings {
  std::string words;
  std::unique_ptr<packet_mirror> mirror;
};

// Writes the pattern of that seed into memory that the client has exposed, and says so when it may be there.
weft::task<> write_to_client(weft::net::device& device, weft::net::connection& peer, request asked,
                             const weft::mr::remote_region& memory) {
  if (memory.size() > most_exposed_bytes) throw weft::error(weft::errc::malformed, "a client exposes too much memory");
  auto source = co_await device.allocate(memory.size());
  fill_with_pattern(source.bytes(), asked.number);
  co_await peer.write(std::move(source), memory);
  const auto packed = asked.pack();
  co_await peer.send_bytes(packed);
}

// Does what the client asks until it closes. What it writes over the memory meanwhile is its own affair.
weft::task<> answer_requests(weft::net::device& device, weft::net::connection& peer, std::span<std::byte> memory) {
  while (auto message = co_await peer.recv()) {
    request asked = request::unpack(message->bytes());
    if (asked.what == request_kind::echo) {
      co_await peer.send(std::move(message->payload));
      continue;
    }
    if (asked.what == request_kind::write) {
      const auto target = weft::mr::remote_region::unpack(message->bytes().subspan(request::packed_bytes));
      co_await write_to_client(device, peer, asked, target);
      continue;
    }
    if (asked.what == request_kind::fill) {
      fill_with_pattern(memory, asked.number);
    } else {
      asked.number = find_difference(memory, asked.number).value_or(request::all_right);
    }
    const auto packed = asked.pack();
    co_await peer.send_bytes(packed);
  }
}

weft::task<> converse(weft::net::device& device, weft::net::connection& peer, const surroundings& around) {
  std::vector<std::byte> memory(memory_bytes);
  const std::span<std::byte> bytes(memory);
  using weft::mr::usage;
  const auto atomics = device.domain().capabilities().usages & usage::atomic_dst;  // where the device has them
  auto region = co_await device.register_memory(
      std::move(memory), {.usage = usage::write_dst | usage::read_src | usage::flush_visibility | atomics});
  const admission admitted(around.mirror.get());
  introduction first;
  first.token = admitted.token();
  first.answers_packets = around.mirror != nullptr;
  first.memory = region.remote();
  first.words = around.words;
  const auto packed = first.pack();
  co_await peer.send_bytes(packed);
  co_await answer_requests(device, peer, bytes);
}

weft::task<> take_client(weft::net::connection_request request, weft::net::device& device, const surroundings& around) {
  if (!is_greeting(request.private_data())) {
    constexpr std::string_view refusal = "only for weft-info";
    co_return co_await request.reject(std::as_bytes(std::span(refusal)));
  }
  weft::net::connection_options options;
  options.receive_size = most_message_bytes;
  options.receive_depth = messages_at_a_time;
  options.private_data = greeting();
  auto peer = co_await request.accept(options);
  co_await weft::with_timeout(longest_session, converse(device, peer, around));
}

weft::task<> serve_client(weft::net::connection_request request, weft::net::device& device,
                          const surroundings& around) {
  const std::string who = fmt::format("{} over {}", common::printable(request.peer()), device.name());
  co_await take_client(std::move(request), device, around);
  fmt::print("{}: done\n", who);
}

struct place {
  weft::net::device* device;
  weft::net::listener listener;
};

weft::task<> accept_all(place& where, const surroundings& around) {
  const auto spawn_each = [&](weft::scope& clients) -> weft::task<> {
    while (auto request = co_await where.listener.next()) {
      std::string peer = fmt::format("{} over {}", request->peer(), where.device->name());
      clients.spawn(
          common::attend("weft-info", std::move(peer), serve_client(std::move(*request), *where.device, around)));
    }
  };
  co_await weft::with_scope(weft::on_failure::report, spawn_each);
}

bool takes_any_port(std::string_view address) { return address.ends_with(":0"); }

// The first one chooses the port, where the system may.
std::string with_port(std::string_view address, std::string_view port) {
  return takes_any_port(address) && !port.empty() ? fmt::format("{}{}", address.substr(0, address.size() - 2), port)
                                                  : std::string(address);
}

weft::task<std::vector<place>> listen(std::vector<served_fabric>& fabrics, std::string& port) {
  std::vector<place> all;
  weft::net::listener_options options;
  options.max_connections = most_clients;
  for (served_fabric& each : fabrics) {
    for (const std::string& address : each.addresses) {
      const std::string wanted = with_port(address, port);
      try {
        auto listener = co_await each.device.listen(wanted, options);
        const std::string_view chosen = listener.address();
        if (port.empty()) port = chosen.substr(chosen.rfind(':'));
        all.push_back(place{&each.device, std::move(listener)});
      } catch (const weft::error& why) {
        if (why.code() == weft::errc::canceled) throw;
        fmt::print(stderr, "weft-info: {}\n", common::printable(why.what()));
      }
    }
  }
  if (all.empty()) throw weft::error(weft::errc::not_supported, "there is nowhere to listen");
  co_return all;
}

std::string host_in(const std::string& address) {
  const std::string host = address.substr(0, std::min(address.rfind(':'), address.size()));
  return host.size() >= 2 && host.front() == '[' && host.back() == ']' ? host.substr(1, host.size() - 2) : host;
}

// Those of a port's GIDs, or of the interfaces below an adapter whose GIDs hold none.
std::vector<std::string> addresses_of(const inventory& all, const rdma_device& device) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& address) {
    if (!address.empty() && std::ranges::find(found, address) == found.end()) found.push_back(address);
  };
  for (const rdma_port& port : device.ports) {
    for (const gid& row : port.gids) add(row.address);
    if (device.kind == rdma_kind::roce) continue;
    for (const std::string& name : port.interfaces) {
      const network_interface* const lower = all.find_interface(name);
      if (lower == nullptr) continue;
      for (const interface_address& each : lower->addresses) {
        if (!each.link_local) add(each.address);
      }
    }
  }
  return found;
}

}  // namespace

std::vector<std::string> places_to_listen(const inventory& all, std::string_view fabric, const std::string& address) {
  const auto device =
      std::ranges::find_if(all.rdma, [&](const rdma_device& each) { return fabric == "verbs:" + each.name; });
  if (device == all.rdma.end()) return {address};
  const std::string host = host_in(address);
  const std::string port = address.substr(std::min(address.rfind(':'), address.size()));
  const bool everywhere = host.empty() || host == "0.0.0.0" || host == "::";
  const bool is_number =
      host.find_first_not_of("0123456789.") == std::string::npos || host.find(':') != std::string::npos;
  if (!everywhere && !is_number) return {address};  // the device knows whether it is one of its own
  std::vector<std::string> places;
  for (const std::string& own : addresses_of(all, *device)) {
    const bool six = own.find(':') != std::string::npos;
    if (everywhere ? six && host == "0.0.0.0" : own != host) continue;
    places.push_back(six ? fmt::format("[{}]{}", own, port) : own + port);
  }
  return places;
}

weft::task<> answer_clients(weft::net::listener& listener, weft::net::device& device) {
  const surroundings no_others;
  while (auto request = co_await listener.next()) co_await take_client(std::move(*request), device, no_others);
}

weft::net::device open_fabric(std::string_view name) {
  weft::net::device_options options;
  options.pool.max_bytes = std::size_t{16} << 20;
  options.pool.arena_bytes = std::size_t{1} << 20;
  options.pool.huge_pages = false;
  options.shm.ring_bytes = std::size_t{64} << 10;
  return weft::net::device::open(name, options);
}

weft::task<> serve(std::vector<served_fabric>& fabrics, std::string address) {
  std::string port =
      takes_any_port(address) ? std::string() : address.substr(std::min(address.rfind(':'), address.size()));
  std::vector<place> places = co_await listen(fabrics, port);
  address = with_port(address, port);
  surroundings around;
  std::string names;
  for (const place& each : places) {
    const std::string_view name = each.device->name();
    if (names.ends_with(name)) continue;  // one that listens at several addresses
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  around.words = fmt::format("weft-info {}, which listens over {}", WEFT_INFO_VERSION, names);
  try {
    around.mirror = std::make_unique<packet_mirror>(address);
  } catch (const std::exception& why) {  // also of a thread that may not be made
    fmt::print(stderr, "weft-info: clients cannot probe the MTU: {}\n", common::printable(why.what()));
  }
  fmt::print("listening on {} over {}; whoever reaches it is answered\n", address, names);
  const auto accept_everywhere = [&](weft::scope& listeners) -> weft::task<> {
    for (place& each : places) listeners.spawn(accept_all(each, around));
    co_return;
  };
  co_await weft::with_scope(weft::on_failure::stop_siblings, accept_everywhere);
}

}  // namespace info
