// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/set_up.hpp>
#include <weft/net/peer_words.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/io.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace weft::net::iwarp {
namespace {

void set_option(descriptor& socket, int level, int name, int value, const char* step = "prepare the TCP socket") {
  const int result = socket.calls().setsockopt(socket.fd(), level, name, &value, sizeof value);
  if (result < 0) throw system_error(-result, fmt::format("{} (socket option {}:{})", step, level, name));
}

// Awaits one call with the deadline of the whole set-up. `step` names it where it fails.
task<int> run_step(detail::io_wait& call, const char* step, time_point deadline) {
  const auto body = [](detail::io_wait& wait) -> task<int> {
    const int result = co_await wait;
    if (result == -ECANCELED) throw error(errc::canceled, "stopped");
    co_return result;
  };
  try {
    int result = co_await with_deadline(deadline, body(call));
    while (result == -EINTR) result = co_await with_deadline(deadline, body(call));
    if (result < 0) throw system_error(-result, step);
    co_return result;
  } catch (const error& why) {
    if (why.code() == errc::timed_out) throw error(errc::timed_out, step);
    throw;
  }
}

task<std::size_t> receive(descriptor& socket, std::span<std::byte> where, const char* step, time_point deadline) {
  iovec memory{.iov_base = where.data(), .iov_len = where.size()};
  msghdr message{};
  message.msg_iov = &memory;
  message.msg_iovlen = 1;
  detail::io_wait call(io_kind::receive, socket, message, 0);
  co_return static_cast<std::size_t>(co_await run_step(call, step, deadline));
}

error failure_of(const handshake& machine) {
  const std::string text(machine.error().view());
  if (machine.state() == handshake_state::rejected) {
    const auto said = machine.peer_private_data();
    return error(errc::peer_rejected, said.empty() ? "MPA set-up" : "MPA set-up: the peer says " + in_words(said));
  }
  return error(errc::protocol_error, "MPA set-up: " + text);
}

// What a machine does, in words for when it takes too long.
struct step_names {
  const char* send;
  const char* receive;
  const char* finish;
};

template <class Machine>
task<std::vector<std::byte>> drive_machine(descriptor& socket, Machine& machine, step_names steps,
                                           time_point deadline) {
  std::vector<std::byte> early;
  std::array<std::byte, 1024> buffer;
  co_await send_output(socket, machine, steps.send, deadline);
  while (machine.state() == handshake_state::waiting) {
    const std::size_t count = co_await receive(socket, buffer, steps.receive, deadline);
    if (count == 0) {
      machine.end_of_stream();
      throw error(errc::peer_vanished, "MPA set-up: " + std::string(machine.error().view()));
    }
    const auto bytes = std::span<const std::byte>(buffer).first(count);
    const std::size_t taken = machine.consume(bytes);
    early.assign(bytes.begin() + static_cast<std::ptrdiff_t>(taken), bytes.end());
  }
  co_await send_output(socket, machine, steps.finish, deadline);
  if (machine.state() == handshake_state::rejected || machine.state() == handshake_state::failed) {
    throw failure_of(machine);
  }
  co_return early;
}

}  // namespace

descriptor open_socket(const socket_address& address, system_calls& calls) {
  const int fd = calls.socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw system_error(-fd, "open a TCP socket");
  return {fd, calls};
}

void prepare_socket(descriptor& socket, std::chrono::milliseconds dead_peer_after) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  if (dead_peer_after.count() <= 0) return;
  // An idle peer is asked after half of the time, and then so often that it is found dead no later than it is due. A
  // busy one has to acknowledge what is sent. The kernel takes no more than 32767 seconds.
  const auto time = std::min<std::chrono::milliseconds>(dead_peer_after, std::chrono::seconds(32767));
  const auto seconds = [](std::chrono::milliseconds part) {
    return std::max(1, static_cast<int>(std::chrono::floor<std::chrono::seconds>(part).count()));
  };
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds(time / 2));
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, seconds(time / 6));
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(time.count()));
}

void set_traffic_class(descriptor& socket, int family, std::optional<std::uint8_t> traffic_class) {
  if (!traffic_class) return;
  const char* const step = "set the traffic class";
  // An IPv6 socket may turn out to speak IPv4.
  set_option(socket, IPPROTO_IP, IP_TOS, *traffic_class, step);
  if (family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_TCLASS, *traffic_class, step);
}

void bind_source(descriptor& socket, const socket_address& target, std::span<const socket_address> sources) {
  if (sources.empty()) return;
  const auto same_family = [&](const socket_address& one) { return one.family() == target.family(); };
  const auto source = std::find_if(sources.begin(), sources.end(), same_family);
  if (source == sources.end()) {
    throw error(errc::invalid_address, "bind the source address: it is of another family than the peer's");
  }
  const std::string step = "bind the source address " + source->to_string();
  // A port that was asked for may have served the connection before this one; one that was not is chosen later, when it
  // is known for whom it must be free.
  if (source->port() != 0) {
    set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1, step.c_str());
  } else {
    set_option(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1, step.c_str());
  }
  const int result = socket.calls().bind(socket.fd(), source->data(), source->size());
  if (result < 0) throw system_error(-result, step);
}

task<> connect_socket(descriptor& socket, const socket_address& address, time_point deadline) {
  sockaddr_storage target{};
  std::copy_n(reinterpret_cast<const char*>(address.data()), address.size(), reinterpret_cast<char*>(&target));
  detail::io_wait call(io_kind::connect, socket, target, address.size());
  co_await run_step(call, "TCP connection", deadline);
}

task<> send_output(descriptor& socket, handshake& machine, const char* step, time_point deadline) {
  while (!machine.output().empty()) {
    const auto bytes = machine.output();
    iovec memory{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
    msghdr message{};
    message.msg_iov = &memory;
    message.msg_iovlen = 1;
    detail::io_wait call(io_kind::send, socket, message, 0);
    machine.sent(static_cast<std::size_t>(co_await run_step(call, step, deadline)));
  }
}

task<> wait_for_input(descriptor& socket, const char* step, time_point deadline) {
  detail::io_wait call(io_kind::readable, socket);
  co_await run_step(call, step, deadline);
}

task<std::vector<std::byte>> drive(descriptor& socket, initiator& machine, time_point deadline) {
  const step_names steps{.send = "send the MPA request",
                         .receive = "wait for the MPA reply",
                         .finish = "send the ready-to-receive message"};
  return drive_machine(socket, machine, steps, deadline);
}

task<std::vector<std::byte>> drive(descriptor& socket, responder& machine, time_point deadline) {
  const step_names steps{.send = "", .receive = "wait for the MPA request", .finish = "turn the peer away"};
  return drive_machine(socket, machine, steps, deadline);
}

}  // namespace weft::net::iwarp
