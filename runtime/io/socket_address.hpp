// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/task.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

struct sockaddr;

namespace weft {

/// A socket address, as a rule an IPv4 or IPv6 address with a port.
class socket_address {
 public:
  socket_address() = default;
  /// A copy of the first `length` bytes of `address`, at most 128, which the kernel or the resolver has filled in.
  socket_address(const sockaddr* address, unsigned length) noexcept;

  /// The address for system calls; size() is its length.
  [[nodiscard]] const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(storage_.data()); }
  /// The length in bytes; 0 for an empty address.
  [[nodiscard]] unsigned size() const noexcept { return length_; }
  /// AF_INET, AF_INET6 or another; AF_UNSPEC for an empty address.
  [[nodiscard]] int family() const noexcept;
  /// The port in host byte order; 0 for an address without a port.
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Whether it is a loopback address: in 127.0.0.0/8, also mapped to IPv6, or ::1.
  [[nodiscard]] bool is_loopback() const noexcept;

  /// "10.0.0.7:7471", "[::1]:7471", or with its scope "[fe80::1%eth0]:7471". "an unknown address" for other families.
  [[nodiscard]] std::string to_string() const;

 private:
  alignas(8) std::array<std::byte, 128> storage_{};  // room for a sockaddr_storage, whose header is not included here
  unsigned length_ = 0;                              // a socklen_t
};

/// A host and a service as a user writes them: "10.0.0.7:7471", "[::1]:7471", "storage-3:7471", ":7471" (no host).
struct host_and_port {
  std::string host;  ///< without brackets; may be empty: see resolve()
  std::string port;  ///< a number, or the name of a service
};

/// Parses HOST:PORT. Throws errc::invalid_address; the message says what is wrong, but does not repeat the text.
[[nodiscard]] host_and_port parse_host_and_port(std::string_view text);

/// Yields the addresses of a name, at least one, in the order in which to try them (RFC 6724). A worker thread calls
/// getaddrinfo(3), unless host and port are numeric. An empty host is the loopback; with `for_listening` it is every
/// address of this machine, IPv6 (which takes IPv4 as well) before IPv4. Throws errc::invalid_address for a text that
/// is not HOST:PORT, a host without an address or an unknown service, EAGAIN if the resolver could not be reached,
/// errc::no_memory, another error of the system, or errc::canceled if it is stopped. The resolver's errors have its
/// message.
task<std::vector<socket_address>> resolve(std::string_view text, bool for_listening);
/// resolve() for a text that parse_host_and_port() has parsed; its errors do not repeat the text.
task<std::vector<socket_address>> resolve(host_and_port where, bool for_listening);

}  // namespace weft
