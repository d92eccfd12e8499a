// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/io/socket_address.hpp>
#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/system_calls.hpp>
#include <weft/runtime/task.hpp>

#include <sys/un.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

// The AF_UNIX sockets that stand for addresses of this machine.
//
//   HOST:PORT  an abstract name made of the numeric address, "\0weft/127.0.0.1:7471". It leaves nothing in a file
//              system, and reaches as far as a port does: to the end of the network namespace.
//   unix:PATH  a socket with a path, whose permissions say who may connect. It reaches into other network namespaces.
namespace weft::net::shm {

/// The name of an AF_UNIX socket.
class unix_name {
 public:
  /// The abstract name for a numeric address and port. An IPv4-mapped IPv6 address has the name of the IPv4 address.
  [[nodiscard]] static unix_name of(const socket_address& address);
  /// The name for a path. Throws errc::invalid_address if `path` is empty, has a zero byte, or is too long for a
  /// socket.
  [[nodiscard]] static unix_name of_path(std::string_view path);

  [[nodiscard]] const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&address_); }
  [[nodiscard]] unsigned size() const noexcept { return length_; }

 private:
  explicit unix_name(std::string_view text);

  sockaddr_un address_{};
  unsigned length_ = 0;  // a socklen_t
};

/// PATH of "unix:PATH"; empty for "HOST:PORT".
[[nodiscard]] std::optional<std::string_view> path_of(std::string_view address) noexcept;

/// The names at which a peer of this address may listen, in the order to try: the address itself, then the wildcard
/// addresses. As with TCP, a wildcard address as the target stands for the loopback.
[[nodiscard]] std::vector<unix_name> names_of(const socket_address& target);

/// Finds out whether an address is one of this machine's, by binding a socket, because lists of addresses are wrong in
/// containers. Returns 0 if it is, -EADDRNOTAVAIL if it is not, or another -errno of socket(2) or bind(2).
[[nodiscard]] int find_here(const socket_address& address, system_calls& calls) noexcept;

/// Opens an AF_UNIX socket of the kind that is used here, SOCK_SEQPACKET. Throws weft::error.
[[nodiscard]] descriptor open_unix_socket(system_calls& calls, int flags = 0);

/// The file of a listening socket that has a path. The file is removed with its listener, unless another file has taken
/// its place.
class socket_file {
 public:
  socket_file() = default;
  /// Takes over the file of a socket that has just been bound to `path`. Throws weft::error.
  socket_file(std::string path, system_calls& calls);
  socket_file(socket_file&& other) noexcept;
  socket_file& operator=(socket_file&&) = delete;
  ~socket_file() { remove(); }

  /// Removes the file, unless another file has replaced it. Call it while the socket still listens, because then nobody
  /// takes the path over.
  void remove() noexcept;

 private:
  std::string path_;  // empty: no file
  system_calls* calls_ = nullptr;
  dev_t device_ = 0;
  ino_t number_ = 0;
};

/// A listening socket and its name.
class listening_socket {
 public:
  listening_socket(descriptor listening, std::string address, socket_file with_path) noexcept
      : socket(std::move(listening)), name(std::move(address)), file(std::move(with_path)) {}

  descriptor socket;
  std::string name;
  socket_file file;
};

/// Listens at a numeric address; port 0 chooses a port that is free for TCP as well. Throws weft::error.
task<listening_socket> listen_at(const socket_address& address);

/// Listens at a path. Replaces a socket that a dead listener has left there, if the directory can be locked within a
/// second. Throws weft::error: EADDRINUSE if the path stays taken.
task<listening_socket> listen_at_path(std::string path);

}  // namespace weft::net::shm
