// SPDX-License-Identifier: Apache-2.0
#include <weft/net/tcp/tcp_socket.hpp>
#include <weft/net/tcp/tcp_window_watch.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>

namespace weft::net {
namespace {

void set_option(descriptor& socket, int level, int name, int value, const char* step = "prepare the TCP socket") {
  const int result = socket.calls().setsockopt(socket.fd(), level, name, &value, sizeof value);
  if (result < 0) throw system_error(-result, fmt::format("{} (socket option {}:{})", step, level, name));
}

}  // namespace

task<int> run_step(weft::detail::io_wait& call, const char* step, time_point deadline) {
  const auto body = [](weft::detail::io_wait& wait) -> task<int> {
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

descriptor open_socket(const socket_address& address, system_calls& calls) {
  const int fd = calls.socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw system_error(-fd, "open a TCP socket");
  return {fd, calls};
}

void prepare_socket(descriptor& socket, std::chrono::milliseconds dead_peer_after) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  if (dead_peer_after.count() <= 0) return;
  // An idle peer is asked after half of the time, and then so often that it is found dead no later than it is due. A
  // busy one has to acknowledge what is sent.
  const auto time = bounded_patience(dead_peer_after);
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
  weft::detail::io_wait call(io_kind::connect, socket, target, address.size());
  co_await run_step(call, "TCP connection", deadline);
}

descriptor listen_at(const socket_address& address, system_calls& calls, std::optional<std::uint8_t> traffic_class) {
  constexpr int backlog = 4096;  // the kernel takes less where net.core.somaxconn says so
  descriptor socket = open_socket(address, calls);
  const auto check = [](int result, const char* step) {
    if (result < 0) throw system_error(-result, step);
  };
  const int yes = 1;
  check(calls.setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), "allow the address to be reused");
  if (address.family() == AF_INET6) {
    // "[::]" takes IPv4 as well, whatever net.ipv6.bindv6only says: see ipv6(7).
    const int no = 0;
    check(calls.setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no), "listen for IPv4 as well");
  }
  set_traffic_class(socket, address.family(), traffic_class);
  check(calls.bind(socket.fd(), address.data(), address.size()), "bind the address");
  check(calls.listen(socket.fd(), backlog), "listen");
  return socket;
}

socket_address address_of(const descriptor& socket) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  const int result = socket.calls().getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &length);
  if (result < 0) throw system_error(-result, "find out the port");
  return {reinterpret_cast<sockaddr*>(&bound), length};
}

bool is_transient(int number) noexcept {
  constexpr int known[] = {ECONNABORTED, EINTR,  EAGAIN,       ECANCELED,  ENETDOWN,    EPROTO, ENOPROTOOPT,
                           EHOSTDOWN,    ENONET, EHOSTUNREACH, EOPNOTSUPP, ENETUNREACH, EPERM};
  return std::find(std::begin(known), std::end(known), number) != std::end(known);
}

bool is_shortage(int number) noexcept {
  return is_shortage_of_descriptors(number) || number == ENOBUFS || number == ENOMEM;
}

bool is_shortage_of_descriptors(int number) noexcept { return number == EMFILE || number == ENFILE; }

int spare_descriptor::keep() noexcept {
  if (held()) return 0;
  const int fd = calls_.eventfd(0, EFD_CLOEXEC);
  if (fd < 0) return fd;
  kept_ = descriptor(fd, calls_);
  return 0;
}

}  // namespace weft::net
