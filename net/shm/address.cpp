// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/checked.hpp>
#include <weft/net/link/tcp_socket.hpp>
#include <weft/net/link/transport.hpp>
#include <weft/net/shm/address.hpp>
#include <weft/net/shm/peer_user.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/sleep.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <utility>

namespace weft::net::shm {
namespace {

constexpr int backlog = 4096;  // the kernel caps it at net.core.somaxconn
constexpr int most_ports_to_try = 16;
// How long to wait for a name, or for the lock of a directory. Others hold the lock only for a few system calls.
constexpr auto longest_wait = std::chrono::seconds(1);
constexpr auto pause = std::chrono::milliseconds(2);

template <class Address>
Address as(const socket_address& address) noexcept {
  Address copy{};
  std::memcpy(&copy, address.data(), sizeof copy);
  return copy;
}

template <class Address>
socket_address to_address(const Address& address) noexcept {
  return {reinterpret_cast<const sockaddr*>(&address), sizeof address};
}

socket_address ipv4(in_addr host, std::uint16_t port) noexcept {
  sockaddr_in made{};
  made.sin_family = AF_INET;
  made.sin_port = htons(port);
  made.sin_addr = host;
  return to_address(made);
}

socket_address ipv6(const in6_addr& host, std::uint16_t port) noexcept {
  sockaddr_in6 made{};
  made.sin6_family = AF_INET6;
  made.sin6_port = htons(port);
  made.sin6_addr = host;
  return to_address(made);
}

in_addr host_of(std::uint32_t number) noexcept { return {.s_addr = htonl(number)}; }

// Turns an IPv4-mapped IPv6 address into the IPv4 address.
socket_address plain(const socket_address& address) noexcept {
  if (address.family() != AF_INET6) return address;
  const auto long_one = as<sockaddr_in6>(address);
  if (IN6_IS_ADDR_V4MAPPED(&long_one.sin6_addr) == 0) return address;
  in_addr host;
  std::memcpy(&host, &long_one.sin6_addr.s6_addr[12], sizeof host);
  return ipv4(host, address.port());
}

// Replaces a wildcard address by the loopback address, which a connection to the wildcard reaches.
socket_address reachable(const socket_address& address) noexcept {
  if (address.family() == AF_INET) {
    const bool is_any = as<sockaddr_in>(address).sin_addr.s_addr == htonl(INADDR_ANY);
    return is_any ? ipv4(host_of(INADDR_LOOPBACK), address.port()) : address;
  }
  const auto long_one = as<sockaddr_in6>(address);
  return IN6_IS_ADDR_UNSPECIFIED(&long_one.sin6_addr) != 0 ? ipv6(in6addr_loopback, address.port()) : address;
}

socket_address with_port(const socket_address& address, std::uint16_t port) noexcept {
  if (address.family() == AF_INET) {
    auto copy = as<sockaddr_in>(address);
    copy.sin_port = htons(port);
    return to_address(copy);
  }
  auto copy = as<sockaddr_in6>(address);
  copy.sin6_port = htons(port);
  return to_address(copy);
}

// A TCP socket that reserves a port until the name made of that port is bound. It does not listen.
descriptor reserve_port(const socket_address& address, system_calls& calls) {
  descriptor socket = open_socket(address, calls);
  checked(calls.bind(socket.fd(), address.data(), address.size()), "find a free port");
  return socket;
}

int bind_name(const descriptor& socket, const unix_name& name) noexcept {
  return socket.calls().bind(socket.fd(), name.data(), name.size());
}

void start_listening(const descriptor& socket) { checked(socket.calls().listen(socket.fd(), backlog), "listen"); }

// Binds the socket to the name for a free port, and returns the address. Ports whose names are taken stay reserved
// meanwhile, or the kernel would choose them again.
socket_address bind_free_port(const descriptor& socket, const socket_address& address) {
  std::vector<descriptor> reserved;
  for (int tries = 0;; ++tries) {
    reserved.push_back(reserve_port(address, socket.calls()));
    const socket_address chosen = with_port(address, address_of(reserved.back()).port());
    const int result = bind_name(socket, unix_name::of(chosen));
    if (result == -EADDRINUSE && tries < most_ports_to_try) continue;
    checked(result, "bind the address");
    return chosen;
  }
}

enum class holder : std::uint8_t {
  nobody,    // nobody listens there
  dead,      // the listener's process has died
  alive,     // a process of this user listens, something else than such a socket is there, or nobody can tell
  stranger,  // a process of another user listens, which peers of this user skip
  silent,    // the listener's backlog is full
};

// Finds out, by connecting, who has a name that cannot be bound. A killed listener may still take the connection for a
// moment, because the kernel ends its io_uring operations in the background.
holder holder_of(const unix_name& name, system_calls& calls) {
  const descriptor probe = open_unix_socket(calls, SOCK_NONBLOCK);
  const int result = calls.connect(probe.fd(), name.data(), name.size());
  if (result == -ECONNREFUSED) return holder::nobody;
  if (result == -EAGAIN) return holder::silent;
  if (result < 0) return holder::alive;
  ucred who{};
  socklen_t length = sizeof who;
  const int asked = calls.getsockopt(probe.fd(), SOL_SOCKET, SO_PEERCRED, &who, &length);
  if (asked == 0 && who.pid > 0 && calls.kill(who.pid, 0) == -ESRCH) return holder::dead;
  return asked == 0 && !is_same_user(who) ? holder::stranger : holder::alive;
}

bool is_left_over(const unix_name& name, system_calls& calls) {
  const holder who = holder_of(name, calls);
  return who == holder::nobody || who == holder::dead;
}

bool is_socket(const std::string& path, system_calls& calls) noexcept {
  struct stat found {};
  return calls.lstat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

// Binds an abstract name, which disappears with its socket. Waits, at most longest_wait, while the socket that has the
// name belongs to a dead process, has a full backlog, or does not listen yet.
task<int> bind_in_time(const descriptor& socket, const unix_name& name) {
  const time_point deadline = executor_core::current()->now() + longest_wait;
  for (;;) {
    const int result = bind_name(socket, name);
    if (result != -EADDRINUSE || executor_core::current()->now() >= deadline) co_return result;
    const holder who = holder_of(name, socket.calls());
    if (who == holder::alive || who == holder::stranger) co_return result;
    co_await sleep_for(pause);
  }
}

// Locks the directory of a listener's path: from bind(2) to listen(2), and while the listener checks for a left-over
// socket and replaces it. Otherwise a socket that does not listen yet would be taken for a dead listener's, and if two
// listeners find a dead listener's socket, the second would remove the file of the first. The lock is on the directory,
// because a lock file would be left behind; the lock ends with the process. Yields an empty descriptor if the directory
// cannot be opened, or locked in time: then nothing is replaced.
task<descriptor> lock_directory_of(const std::string& path, system_calls& calls) {
  const std::size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const int fd = calls.open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) co_return descriptor();
  descriptor opened(fd, calls);
  const time_point deadline = executor_core::current()->now() + longest_wait;
  for (;;) {
    const int result = calls.flock(fd, LOCK_EX | LOCK_NB);
    if (result == 0) co_return opened;
    if (result != -EWOULDBLOCK || executor_core::current()->now() >= deadline) co_return descriptor();
    co_await sleep_for(pause);
  }
}

}  // namespace

unix_name::unix_name(std::string_view text) {
  address_.sun_family = AF_UNIX;
  std::copy(text.begin(), text.end(), address_.sun_path);
  length_ = static_cast<unsigned>(offsetof(sockaddr_un, sun_path) + text.size());
}

unix_name unix_name::of(const socket_address& address) {
  std::string text(1, '\0');
  text += "weft/" + plain(address).to_string();
  return unix_name(text);
}

unix_name unix_name::of_path(std::string_view path) {
  constexpr std::size_t longest = sizeof(sockaddr_un::sun_path) - 1;  // with a zero behind it
  if (path.empty() || path.find('\0') != std::string_view::npos) {
    throw error(errc::invalid_address, "not unix:PATH (no path)");
  }
  if (path.size() > longest) {
    throw error(errc::invalid_address, fmt::format("the path of a socket is at most {} bytes long", longest));
  }
  unix_name made(path);
  ++made.length_;
  return made;
}

std::optional<std::string_view> path_of(std::string_view address) noexcept {
  if (!address.starts_with(unix_path_prefix)) return std::nullopt;
  return address.substr(unix_path_prefix.size());
}

std::vector<unix_name> names_of(const socket_address& target) {
  const socket_address exact = reachable(plain(target));
  std::vector<unix_name> names{unix_name::of(exact), unix_name::of(ipv6(in6addr_any, exact.port()))};
  if (exact.family() == AF_INET) names.push_back(unix_name::of(ipv4(host_of(INADDR_ANY), exact.port())));
  return names;
}

int find_here(const socket_address& address, system_calls& calls) noexcept {
  const int fd = calls.socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return fd;
  const descriptor probe(fd, calls);
  const socket_address any_port = with_port(address, 0);
  return calls.bind(fd, any_port.data(), any_port.size());
}

descriptor open_unix_socket(system_calls& calls, int flags) {
  const int fd = calls.socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
  return {checked(fd, "open a Unix socket"), calls};
}

socket_file::socket_file(std::string path, system_calls& calls) : calls_(&calls) {
  struct stat found {};
  checked(calls.lstat(path.c_str(), &found), "look at the socket's file");
  device_ = found.st_dev;
  number_ = found.st_ino;
  path_ = std::move(path);
}

socket_file::socket_file(socket_file&& other) noexcept
    : path_(std::exchange(other.path_, {})), calls_(other.calls_), device_(other.device_), number_(other.number_) {}

void socket_file::remove() noexcept {
  if (path_.empty()) return;
  struct stat found {};
  const bool is_own = calls_->lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == number_;
  if (is_own) calls_->unlink(path_.c_str());
  path_.clear();
}

task<listening_socket> listen_at(const socket_address& address) {
  system_calls& calls = executor_core::current()->calls();
  checked(find_here(address, calls), "bind the address");
  descriptor socket = open_unix_socket(calls);
  socket_address chosen = address;
  if (address.port() != 0) {
    const unix_name name = unix_name::of(address);
    const int result = co_await bind_in_time(socket, name);
    // Any user can take a name. If peers would not reach its holder, the error is EACCES instead of EADDRINUSE, so that
    // this process may still listen at the address over another fabric.
    if (result == -EADDRINUSE && holder_of(name, calls) != holder::alive) {
      throw system_error(EACCES, "bind the address: a process that peers of this user cannot reach has its name");
    }
    checked(result, "bind the address");
  } else {
    chosen = bind_free_port(socket, address);
  }
  start_listening(socket);
  listening_socket made(std::move(socket), chosen.to_string(), socket_file());
  co_return made;
}

task<listening_socket> listen_at_path(std::string path) {
  const unix_name name = unix_name::of_path(path);
  system_calls& calls = executor_core::current()->calls();
  const descriptor lock = co_await lock_directory_of(path, calls);
  descriptor socket = open_unix_socket(calls);
  int result = bind_name(socket, name);
  if (result == -EADDRINUSE && lock && is_socket(path, calls) && is_left_over(name, calls)) {
    checked(calls.unlink(path.c_str()), "remove the socket that a dead listener has left");
    result = bind_name(socket, name);
  }
  checked(result, "bind the path");
  socket_file file(path, calls);
  start_listening(socket);
  listening_socket made(std::move(socket), std::string(unix_path_prefix) + path, std::move(file));
  co_return made;
}

}  // namespace weft::net::shm
