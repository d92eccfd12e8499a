// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/told_address.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <cstdint>
#include <cstring>

namespace weft::net::rails {
namespace {

constexpr std::uint64_t ipv6 = std::uint64_t{1} << 16;  // flag above the port in control::number

struct place_in_network {
  in6_addr host{};  // an IPv4 address is in the first four bytes
  bool is_ipv6 = false;
  std::uint16_t port = 0;

  [[nodiscard]] std::uint8_t first() const noexcept { return host.s6_addr[0]; }
  [[nodiscard]] bool is_loopback() const noexcept { return is_ipv6 ? IN6_IS_ADDR_LOOPBACK(&host) : first() == 127; }
  // Whether a listener can have this address, loopback included.
  [[nodiscard]] bool is_of_one() const noexcept {
    if (port == 0) return false;
    if (!is_ipv6) return first() != 0 && first() < 224;  // 0: this network; from 224 on: multicast and reserved
    return !IN6_IS_ADDR_UNSPECIFIED(&host) && !IN6_IS_ADDR_MULTICAST(&host) && !IN6_IS_ADDR_LINKLOCAL(&host) &&
           !IN6_IS_ADDR_V4MAPPED(&host);
  }
};

std::optional<place_in_network> parse(std::string_view text) try {
  const host_and_port parts = parse_host_and_port(text);
  place_in_network found;
  const char* const end = parts.port.data() + parts.port.size();
  const auto [stop, failure] = std::from_chars(parts.port.data(), end, found.port);
  if (failure != std::errc() || stop != end) return std::nullopt;
  found.is_ipv6 = parts.host.find(':') != std::string::npos;
  const int family = found.is_ipv6 ? AF_INET6 : AF_INET;
  return ::inet_pton(family, parts.host.c_str(), &found.host) == 1 ? std::optional(found) : std::nullopt;
} catch (const error&) {
  return std::nullopt;
}

}  // namespace

std::optional<control> tell_address(std::string_view address, std::size_t place) {
  const auto where = parse(address);
  if (!where || !where->is_of_one() || place >= max_rails) return std::nullopt;
  control said;
  said.kind = control_kind::listens;
  said.rail = static_cast<std::uint8_t>(place);
  said.number = where->port | (where->is_ipv6 ? ipv6 : 0);
  std::memcpy(&said.key, where->host.s6_addr, sizeof said.key);
  std::memcpy(&said.address, where->host.s6_addr + sizeof said.key, sizeof said.address);
  return said;
}

std::optional<std::string> told_address(const control& said, std::string_view peer) {
  place_in_network where;
  where.is_ipv6 = (said.number & ipv6) != 0;
  where.port = static_cast<std::uint16_t>(said.number);
  std::memcpy(where.host.s6_addr, &said.key, sizeof said.key);
  std::memcpy(where.host.s6_addr + sizeof said.key, &said.address, sizeof said.address);
  const auto known = parse(peer);
  if (!where.is_of_one() || (where.is_loopback() && (!known || !known->is_loopback()))) return std::nullopt;
  char text[INET6_ADDRSTRLEN] = {};
  if (::inet_ntop(where.is_ipv6 ? AF_INET6 : AF_INET, &where.host, text, sizeof text) == nullptr) return std::nullopt;
  const std::string host = where.is_ipv6 ? "[" + std::string(text) + "]" : std::string(text);
  return host + ":" + std::to_string(where.port);
}

}  // namespace weft::net::rails
