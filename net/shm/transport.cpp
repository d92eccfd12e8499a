// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/peer_words.hpp>
#include <weft/net/link/try_addresses.hpp>
#include <weft/net/shm/address.hpp>
#include <weft/net/shm/listener.hpp>
#include <weft/net/shm/set_up.hpp>
#include <weft/net/shm/transport.hpp>
#include <weft/net/software/receive_queue.hpp>
#include <weft/net/software/words.hpp>
#include <weft/runtime/sleep.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::net::shm {
namespace {

// Pauses between attempts to connect to a listener whose backlog is full.
constexpr auto shortest_pause = std::chrono::milliseconds(1);
constexpr auto longest_pause = std::chrono::milliseconds(32);
constexpr const char* connect_step = "connect to the listener's socket";
constexpr const char* busy_step = "connect to the listener's socket: the listener's backlog is full";
constexpr const char* answer_step = "wait for the answer";
// A peer on another machine and a peer in another container of this machine look alike: both have their own addresses.
constexpr const char* elsewhere = "the peer is on another machine, or in another network namespace (see unix:PATH)";
constexpr const char* nobody_there = "in this network namespace (unix:PATH reaches others)";
// How long to try a listener whose backlog is full, if the peer may be reached over another fabric.
constexpr auto patience_with_busy_ones = std::chrono::milliseconds(250);

class transport final : public net::transport {
 public:
  transport(const shm_options& options, std::shared_ptr<software::domain> home)
      : options_(options), domain_(std::move(home)), base_(domain_) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "shm"; }
  [[nodiscard]] const std::shared_ptr<mr::domain>& shared_domain() const noexcept override { return base_; }
  [[nodiscard]] native_features features() const noexcept override { return {.atomics = true, .immediate = true}; }
  [[nodiscard]] bool understands(std::string_view address) const noexcept override {
    return address.starts_with(unix_path_prefix) || net::transport::understands(address);
  }
  [[nodiscard]] bool has_own_ports() const noexcept override { return true; }
  [[nodiscard]] task<new_link> connect(std::string_view address, const set_up_options& options) override;
  [[nodiscard]] task<std::unique_ptr<link_listener>> listen(std::string_view address,
                                                            const listen_options& options) override;
  [[nodiscard]] task<std::unique_ptr<net::receive_queue>> share_receives(std::uint16_t depth) override {
    co_return std::make_unique<software::receive_queue>(depth);
  }

 private:
  task<new_link> connect_to_path(std::string_view path, const set_up_options& options);
  task<new_link> connect_here(const socket_address& address, time_point connected_by, const set_up_options& options);
  task<new_link> set_up(std::unique_ptr<descriptor> socket, std::string peer, const set_up_options& options);

  const shm_options options_;
  std::shared_ptr<software::domain> domain_;
  std::shared_ptr<mr::domain> base_;
};

// Checks set_up_options::source, which has no other effect here: throws if none of its addresses is this machine's.
task<> check_source(const set_up_options& options) {
  const std::vector<socket_address> sources = co_await look_up_source(options.source, options.deadline);
  int result = 0;
  for (const socket_address& each : sources) {
    result = find_here(each, executor_core::current()->calls());
    if (result == 0) co_return;
  }
  if (result < 0) throw system_error(-result, fmt::format("bind the source address {}", sources.back().to_string()));
}

enum class found : std::uint8_t {
  listener,
  nobody,
  no_room,  // the listener's backlog is full
};

// Connects. The socket is non-blocking, because connect(2) would otherwise wait for a listener that does not accept.
found try_name(const unix_name& name, descriptor& socket) {
  system_calls& calls = socket.calls();
  int result = -EINTR;
  while (result == -EINTR) result = calls.connect(socket.fd(), name.data(), name.size());
  if (result == -ECONNREFUSED || result == -ENOENT) return found::nobody;
  if (result == -EAGAIN) return found::no_room;
  if (result == 0) result = calls.fcntl(socket.fd(), F_SETFL, 0);  // blocking again: see class descriptor
  if (result < 0) throw system_error(-result, connect_step);
  return found::listener;
}

// The error for a listener of another user; empty if the listener is of this process's user.
std::optional<error> stranger_at(const descriptor& socket) {
  const ucred who = peer_of(socket);
  if (is_same_user(who)) return std::nullopt;
  if (has_no_number(who)) {
    return system_error(EACCES, "who listens there has no number in this user namespace, and may be anybody");
  }
  return system_error(EACCES, fmt::format("what listens there belongs to user {}, and this process runs as user {}",
                                          who.uid, ::geteuid()));
}

// Connects to the first of the names at which a process of this user listens, or with `any_user` any process. Null if
// nobody listens. Any user can take an abstract name, and leave peers waiting there, so a listener of another user, or
// one whose backlog is full, does not keep the other names from being tried. Throws EACCES if only other users listen,
// and errc::timed_out if a backlog is still full at the deadline.
task<std::unique_ptr<descriptor>> find_listener(const std::vector<unix_name>& names, bool any_user,
                                                time_point deadline) {
  system_calls& calls = executor_core::current()->calls();
  auto pause = shortest_pause;
  for (;;) {
    std::optional<error> stranger;
    bool is_busy = false;
    for (const unix_name& name : names) {
      auto socket = std::make_unique<descriptor>(open_unix_socket(calls, SOCK_NONBLOCK));
      const found what = try_name(name, *socket);
      is_busy = is_busy || what == found::no_room;
      if (what != found::listener) continue;
      if (any_user) co_return socket;
      auto failure = stranger_at(*socket);
      if (!failure) co_return socket;
      stranger = std::move(failure);
    }
    if (!is_busy && stranger) throw error(*stranger);
    if (!is_busy) co_return nullptr;
    if (executor_core::current()->now() >= deadline) throw error(errc::timed_out, busy_step);
    co_await sleep_for(pause);
    pause = std::min(2 * pause, longest_pause);
  }
}

error rejected(const frame& answer) {
  switch (answer.reason) {
    case reject_reason::other_user:
      return system_error(EACCES, "the listener takes processes of its own user only");
    case reject_reason::other_version:
      return error(errc::protocol_error, fmt::format("the peer speaks no version {} of this set-up", answer.version));
    case reject_reason::unable: {
      const software::words why = software::quoted(answer.private_data(), frame::max_private_bytes);
      return error(errc::not_supported, fmt::format("the peer can have no memory to share: {}", why.view()));
    }
    case reject_reason::program:
      break;
  }
  return rejection(answer.private_data(), answer_step);
}

// The acceptor's agreement from this end's point of view.
frame turned_round(const frame& hello, const frame& answer) {
  frame agreed = answer;
  std::swap(agreed.incoming_reads, agreed.outgoing_reads);
  if (agreed.incoming_reads > hello.incoming_reads || agreed.outgoing_reads > hello.outgoing_reads ||
      agreed.ring_bytes > hello.ring_bytes) {
    throw error(errc::protocol_error, fmt::format("{}: the peer agrees to more than was asked for", answer_step));
  }
  return agreed;
}

task<new_link> transport::connect(std::string_view address, const set_up_options& options) {
  co_await check_source(options);
  if (const auto path = path_of(address)) co_return co_await connect_to_path(*path, options);
  const auto attempt = [&](const socket_address& candidate, time_point connected_by) {
    return connect_here(candidate, connected_by, options);
  };
  co_return co_await try_addresses(address, false, options.deadline, attempt);
}

task<new_link> transport::connect_to_path(std::string_view path, const set_up_options& options) {
  const unix_name name = unix_name::of_path(path);
  const std::vector<unix_name> only(1, name);
  auto socket = co_await find_listener(only, true, options.deadline);
  if (socket == nullptr) throw system_error(ECONNREFUSED, connect_step);
  co_return co_await set_up(std::move(socket), fmt::format("unix:{}", path), options);
}

task<new_link> transport::connect_here(const socket_address& address, time_point connected_by,
                                       const set_up_options& options) {
  const int here = find_here(address, executor_core::current()->calls());
  if (here == -EADDRNOTAVAIL) throw error(errc::wrong_device, elsewhere);
  if (here < 0) throw system_error(-here, "find out whether the peer is on this machine");
  if (options.may_go_elsewhere) {
    connected_by = std::min(connected_by, executor_core::current()->now() + patience_with_busy_ones);
  }
  const std::vector<unix_name> names = names_of(address);
  auto socket = co_await find_listener(names, false, connected_by);
  if (socket == nullptr) throw system_error(ECONNREFUSED, nobody_there);
  co_return co_await set_up(std::move(socket), address.to_string(), options);
}

task<new_link> transport::set_up(std::unique_ptr<descriptor> socket, std::string peer, const set_up_options& options) {
  frame hello{.kind = frame_kind::hello,
              .incoming_reads = options.incoming_reads,
              .outgoing_reads = options.outgoing_reads,
              .ring_bytes = static_cast<std::uint32_t>(options_.ring_bytes)};
  if (!hello.set_private_data(options.private_data)) throw error(errc::invalid_argument, "too much private data");
  send_frame(*socket, hello, {}, "send the hello");
  received_frame answer = co_await receive_frame(*socket, answer_step, options.deadline);
  const frame& said = answer.contents;
  if (said.version == frame::spoken_version && said.kind == frame_kind::reject) throw rejected(said);
  check_kind(said, frame_kind::accept, answer_step);
  const frame agreed = turned_round(hello, said);
  channel memory = channel::adopt(std::move(answer.descriptors[0]), agreed.ring_bytes, socket->calls());
  send_frame(*socket, {.kind = frame_kind::ready}, {}, "say that this end is ready");
  const auto data = said.private_data();
  std::vector<std::byte> peer_data(data.begin(), data.end());
  auto ready = finish_set_up(std::move(memory), *socket, agreed, std::move(peer), domain_, options.receives);
  co_return new_link(std::move(ready), std::move(peer_data));
}

task<std::unique_ptr<link_listener>> transport::listen(std::string_view address, const listen_options& options) {
  if (const auto path = path_of(address)) {
    listening_socket at = co_await listen_at_path(std::string(*path));
    co_return shm::listen(std::move(at), domain_, options_, options);
  }
  const auto attempt = [&](const socket_address& candidate, time_point) -> task<std::unique_ptr<link_listener>> {
    listening_socket at = co_await listen_at(candidate);
    co_return shm::listen(std::move(at), domain_, options_, options);
  };
  co_return co_await try_addresses(address, true, time_point::max(), attempt);
}

}  // namespace

std::unique_ptr<net::transport> open_transport(const shm_options& options, system_calls& calls) {
  return open_transport(options, std::make_shared<software::domain>(calls, "shm"));
}

std::unique_ptr<net::transport> open_transport(const shm_options& options, std::shared_ptr<software::domain> home) {
  const std::size_t bytes = options.ring_bytes;
  if ((bytes & (bytes - 1)) != 0 || bytes < channel::min_ring_bytes || bytes > channel::max_ring_bytes) {
    throw error(errc::invalid_argument, fmt::format("shm_options::ring_bytes is a power of two from {} to {}",
                                                    channel::min_ring_bytes, channel::max_ring_bytes));
  }
  return std::make_unique<transport>(options, std::move(home));
}

}  // namespace weft::net::shm
