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

/// An IPv4 or IPv6 address with a port.
class socket_address {
 public:
  socket_address() = default;
  /// A copy of the first `length` bytes of `address`, as the kernel fills it.
  socket_address(const sockaddr* address, unsigned length) noexcept;

  /// For system calls, with size().
  [[nodiscard]] const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(storage_.data()); }
  /// In bytes; 0 of an empty address.
  [[nodiscard]] unsigned size() const noexcept { return length_; }
  /// AF_INET, AF_INET6 or another; AF_UNSPEC of an empty address.
  [[nodiscard]] int family() const noexcept;
  /// In the order of this machine; 0 of an address without one.
  [[nodiscard]] std::uint16_t port() const noexcept;
  /// Whether it is one of this machine's to itself: 127.0.0.0/8, ::1.
  [[nodiscard]] bool is_loopback() const noexcept;

  /// "10.0.0.7:7471", "[::1]:7471", or with its scope "[fe80::1%eth0]:7471".
  [[nodiscard]] std::string to_string() const;

 private:
  alignas(8) std::array<std::byte, 128> storage_{};  // as a sockaddr_storage, whose header would come along
  unsigned length_ = 0;                              // a socklen_t
};

/// A host and a service as a user writes them: "10.0.0.7:7471", "[::1]:7471", "storage-3:7471", ":7471" (any address).
struct host_and_port {
  std::string host;  ///< without brackets; empty for any address
  std::string port;  ///< a number, or the name of a service
};

/// Takes such a text apart; throws errc::invalid_address, saying what is missing but not in what.
[[nodiscard]] host_and_port parse_host_and_port(std::string_view text);

/// The addresses of a name, in the order in which to try them: see getaddrinfo(3), which a worker thread asks, and
/// RFC 6724. `for_listening`: an empty host is every address of this machine, IPv6 (which takes IPv4 as well) before
/// IPv4; else it is the loopback. At least one address, or an error with the resolver's words: errc::invalid_address,
/// or EAGAIN where the resolver could not be reached.
[[nodiscard]] task<std::vector<socket_address>> resolve(std::string_view text, bool for_listening);
/// The same for a text that was taken apart; its errors do not repeat what was asked for.
[[nodiscard]] task<std::vector<socket_address>> resolve(host_and_port where, bool for_listening);

}  // namespace weft
