// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/checked.hpp>
#include <weft/net/shm/peer_user.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>

namespace weft::net::shm {
namespace {

// Reads the beginning of a file in /proc. Empty if it cannot be read.
std::string_view read_beginning(const char* path, std::span<char> memory) noexcept {
  system_calls& calls = system_calls::kernel();
  const int fd = calls.open(path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return {};
  const descriptor file(fd, calls);
  const iovec where{.iov_base = memory.data(), .iov_len = memory.size()};
  const ssize_t count = calls.preadv(fd, &where, 1, 0);
  return {memory.data(), count > 0 ? static_cast<std::size_t>(count) : 0};
}

// Takes the next number off the beginning of the text; empty if there is none.
std::optional<std::uint32_t> take_number(std::string_view& text) noexcept {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  std::uint32_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

// The uid as which all unmapped users appear in the user namespace of this process.
uid_t overflow_user() noexcept {
  std::array<char, 16> memory;
  std::string_view text = read_beginning("/proc/sys/kernel/overflowuid", memory);
  return take_number(text).value_or(65534);
}

// Whether the user namespace maps all users, as on a machine without containers.
bool every_user_has_a_number() noexcept {
  constexpr std::uint32_t all_users = 0xffff'ffff;
  std::array<char, 64> memory;
  std::string_view map = read_beginning("/proc/self/uid_map", memory);
  const auto first_inside = take_number(map);
  const auto first_outside = take_number(map);
  const auto count = take_number(map);
  return first_inside == 0 && first_outside && count == all_users;
}

}  // namespace

ucred peer_of(const descriptor& socket) {
  ucred who{};
  socklen_t length = sizeof who;
  checked(socket.calls().getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &who, &length), "ask who the peer is");
  return who;
}

bool has_no_number(const ucred& peer) noexcept {
  static const uid_t stands_for_all = overflow_user();
  return peer.uid == stands_for_all && !every_user_has_a_number();
}

bool is_same_user(const ucred& peer) noexcept { return peer.uid == ::geteuid() && !has_no_number(peer); }

}  // namespace weft::net::shm
