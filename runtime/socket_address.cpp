// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/socket_address.hpp>

#include <fmt/format.h>

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>

namespace weft {

socket_address::socket_address(const sockaddr* address, socklen_t length) noexcept
    : length_(std::min<socklen_t>(length, sizeof storage_)) {
  std::memcpy(&storage_, address, length_);
}

std::uint16_t socket_address::port() const noexcept {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return 0;
}

bool socket_address::is_loopback() const noexcept {
  if (family() == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24) == 127;
  }
  if (family() != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

std::string socket_address::to_string() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (family() == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text.data(), text.size());
    return fmt::format("{}:{}", text.data(), port());
  }
  if (family() == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text.data(), text.size());
    return fmt::format("[{}]:{}", text.data(), port());
  }
  return "an unknown address";
}

host_and_port parse_host_and_port(std::string_view text) {
  const auto refuse = [&](const char* why) {
    throw error(errc::invalid_address, fmt::format("\"{}\" is not HOST:PORT ({})", text, why));
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) refuse("no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  if (port.empty()) refuse("the port is empty");
  if (host.starts_with('[') != host.ends_with(']')) refuse("an unfinished [IPv6 address]");
  if (host.starts_with('[')) {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    refuse("write an IPv6 address in brackets");
  }
  const bool numeric = std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (numeric && (port.size() > 5 || std::stoul(std::string(port)) > 65535)) refuse("a port is at most 65535");
  return {std::string(host), std::string(port)};
}

namespace {

task<std::vector<socket_address>> look_up(std::string text, bool for_listening) {
  const host_and_port parts = parse_host_and_port(text);
  const auto ask = [&]() -> std::vector<socket_address> {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = for_listening ? AI_PASSIVE : 0;
    addrinfo* found = nullptr;
    const char* const host = parts.host.empty() ? nullptr : parts.host.c_str();
    const int failure = ::getaddrinfo(host, parts.port.c_str(), &hints, &found);
    if (failure != 0) {
      const std::string words = failure == EAI_SYSTEM ? std::system_category().message(errno) : ::gai_strerror(failure);
      throw error(errc::invalid_address, fmt::format("look up {}: {}", text, words));
    }
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
    std::vector<socket_address> addresses;
    for (const addrinfo* item = found; item != nullptr; item = item->ai_next) {
      addresses.emplace_back(item->ai_addr, item->ai_addrlen);
    }
    return addresses;
  };
  co_return co_await offload(ask);
}

}  // namespace

task<std::vector<socket_address>> resolve(std::string_view text, bool for_listening) {
  return look_up(std::string(text), for_listening);  // a copy: the task starts later
}

}  // namespace weft
