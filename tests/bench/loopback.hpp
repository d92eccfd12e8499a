// SPDX-License-Identifier: Apache-2.0
// Sockets of the programs by hand that benchmarks measure weft against.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstdio>

namespace weft::bench {

inline sockaddr_in loopback(std::uint16_t port) noexcept {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Listens at any port of the loopback interface, and prints it. -1: errno says why not.
inline int listen_anywhere(int flags = 0) noexcept {
  sockaddr_in address = loopback(0);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
  if (fd < 0 || ::bind(fd, any, length) != 0 || ::listen(fd, SOMAXCONN) != 0) return -1;
  if (::getsockname(fd, any, &length) != 0) return -1;
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return fd;
}

/// -1: errno says why not.
inline int connect_to(std::uint16_t port) noexcept {
  const sockaddr_in address = loopback(port);
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool connected = fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  return connected ? fd : -1;
}

/// Whether the socket sends from now on without waiting for more.
inline bool send_at_once(int fd) noexcept {
  const int on = 1;
  return ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0;
}

}  // namespace weft::bench
