// SPDX-License-Identifier: Apache-2.0
// What the tests of set-ups over shared memory share: a transport, an executor, and peers made by hand.
#pragma once

#include <weft/net/link/live_statistics.hpp>
#include <weft/net/shm/address.hpp>
#include <weft/net/shm/handshake.hpp>
#include <weft/net/shm/transport.hpp>
#include <weft/weft.hpp>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "kit/clock.hpp"
#include "kit/descriptors.hpp"
#include "kit/failing_system_calls.hpp"
#include "kit/loopback.hpp"
#include "kit/temporary_directory.hpp"
#include "kit/with_calls.hpp"
#include "runtime/support.hpp"
#include "shm/link_in_tests.hpp"

namespace weft::test {

namespace shm = net::shm;
using namespace std::chrono_literals;
using bytes = std::vector<std::byte>;

/// A directory with a place for the socket of a listener.
class scratch_directory : public temporary_directory {
 public:
  [[nodiscard]] std::string socket() const { return *this / "socket"; }
  [[nodiscard]] std::string address() const { return "unix:" + socket(); }
};

/// How many names there are of shared memory that may be ours. Other programs of the machine have theirs.
inline std::size_t names_of_weft() {
  std::size_t count = 0;
  for (const char* const directory : {"/dev/shm", "/run/shm"}) {
    std::error_code missing;
    for (const auto& each : std::filesystem::directory_iterator(directory, missing)) {
      count += each.path().filename().string().find("weft") != std::string::npos;
    }
  }
  return count;
}

/// A descriptor of a test's own.
inline descriptor owned(int fd) {
  if (fd < 0) throw system_error(errno, "open a descriptor");
  return {fd, system_calls::kernel()};
}

/// A file in memory of this length.
inline descriptor new_memory(std::size_t length, int seals) {
  descriptor made = owned(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::ftruncate(made.fd(), static_cast<off_t>(length)) != 0) throw system_error(errno, "ftruncate");
  if (seals != 0 && ::fcntl(made.fd(), F_ADD_SEALS, seals) != 0) throw system_error(errno, "seal");
  return made;
}

inline bytes bytes_of(std::string_view words) {
  const auto view = std::as_bytes(std::span(words));
  return {view.begin(), view.end()};
}

inline bytes packed(const shm::frame& what) {
  std::array<std::byte, shm::frame::max_bytes> memory;
  const std::size_t length = shm::pack(what, memory);
  return {memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(length)};
}

inline shm::frame hello_frame() {
  return {.incoming_reads = 16, .outgoing_reads = 16, .ring_bytes = std::uint32_t{256} << 10};
}

inline shm::frame accept_frame() {
  shm::frame made = hello_frame();
  made.kind = shm::frame_kind::accept;
  return made;
}

/// One end of a socket, for saying what no transport of ours would say.
class raw_end {
 public:
  explicit raw_end(descriptor socket) : socket_(std::make_unique<descriptor>(std::move(socket))) {}

  [[nodiscard]] static raw_end connect(const shm::unix_name& name) {
    descriptor socket = shm::open_unix_socket(system_calls::kernel());
    if (::connect(socket.fd(), name.data(), name.size()) != 0) throw system_error(errno, "connect");
    return raw_end(std::move(socket));
  }

  void send(std::span<const std::byte> packet, std::vector<int> descriptors = {}) {
    std::vector<std::byte> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
    iovec memory{.iov_base = const_cast<std::byte*>(packet.data()), .iov_len = packet.size()};
    msghdr message{};
    message.msg_iov = &memory;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr& header = *CMSG_FIRSTHDR(&message);
      header.cmsg_level = SOL_SOCKET;
      header.cmsg_type = SCM_RIGHTS;
      header.cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(&header), descriptors.data(), descriptors.size() * sizeof(int));
    }
    if (::sendmsg(socket_->fd(), &message, MSG_NOSIGNAL) < 0) throw system_error(errno, "sendmsg");
  }
  void send(const shm::frame& what, std::vector<int> descriptors = {}) { send(packed(what), std::move(descriptors)); }

  [[nodiscard]] int fd() const noexcept { return socket_->fd(); }

  /// The next packet; empty at the end. A descriptor that comes with it goes to `*with`, if there is that place.
  task<bytes> receive(descriptor* with = nullptr) {
    weft::detail::io_wait readable(io_kind::readable, *socket_);
    static_cast<void>(co_await readable);
    bytes packet(1024);
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control;
    iovec memory{.iov_base = packet.data(), .iov_len = packet.size()};
    msghdr message{};
    message.msg_iov = &memory;
    message.msg_iovlen = 1;
    if (with != nullptr) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
    }
    const ssize_t count = ::recvmsg(socket_->fd(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    packet.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    if (const cmsghdr* const header = CMSG_FIRSTHDR(&message); count > 0 && with != nullptr && header != nullptr) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
      *with = owned(fd);
    }
    co_return packet;
  }
  /// The end, behind whatever packets there are.
  task<> receive_to_the_end() {
    for (bytes packet(1); !packet.empty();) packet = co_await receive();
  }
  task<shm::frame> receive_frame(descriptor* with = nullptr) {
    const bytes packet = co_await receive(with);
    shm::frame what;
    if (shm::unpack(packet, what) != shm::frame_status::good) throw error(errc::malformed, "a frame for a raw end");
    co_return what;
  }
  void close() noexcept { socket_->close(); }

 private:
  std::unique_ptr<descriptor> socket_;
};

/// Listens where no transport of ours does, and answers what no other would.
class raw_acceptor {
 public:
  explicit raw_acceptor(const shm::unix_name& name)
      : socket_(std::make_unique<descriptor>(shm::open_unix_socket(system_calls::kernel()))) {
    if (::bind(socket_->fd(), name.data(), name.size()) != 0) throw system_error(errno, "bind");
    if (::listen(socket_->fd(), 16) != 0) throw system_error(errno, "listen");
  }

  task<raw_end> accept() {
    weft::detail::io_wait call(io_kind::accept, *socket_);
    const int fd = co_await call;
    if (fd < 0) throw system_error(-fd, "accept");
    co_return raw_end(descriptor(fd, system_calls::kernel()));
  }

 private:
  std::unique_ptr<descriptor> socket_;
};

inline constexpr system_call_set calls_of_a_set_up =
    system_call::socket | system_call::bind | system_call::listen | system_call::connect | system_call::getsockname |
    system_call::getsockopt | system_call::sendmsg | system_call::recvmsg | system_call::eventfd |
    system_call::memfd_create | system_call::ftruncate | system_call::fcntl | system_call::fstat | system_call::lstat |
    system_call::mmap_file;

class shm_test : public testing::Test {
 protected:
  explicit shm_test(system_calls& calls = system_calls::kernel()) : home_({.clock = &clock_, .system_calls = &calls}) {}

  template <class Script>
  void run(Script script) {
    home_.run(with_timeout(1000s, script()));
  }
  void jump(duration time) noexcept { clock_.advance(time); }

  [[nodiscard]] net::transport& transport() noexcept { return *transport_; }
  [[nodiscard]] executor& home() noexcept { return home_; }

  task<std::unique_ptr<net::link_listener>> listen(std::string address = "127.0.0.1:0",
                                                   std::size_t max_half_open = 256) {
    const net::listen_options how{.set_up_timeout = 5s, .max_half_open = max_half_open, .counts = &counts};
    co_return co_await transport_->listen(address, how);
  }
  /// One that accepts peers although nobody waits for them: it does from the first next() on.
  task<std::unique_ptr<net::link_listener>> listen_at_work(std::size_t max_half_open = 256) {
    auto listener = co_await listen("127.0.0.1:0", max_half_open);
    EXPECT_EQ(co_await code_of(with_timeout(1ms, listener->next())), errc::timed_out);
    co_return listener;
  }
  [[nodiscard]] net::set_up_options how(std::string_view data = {}) {
    net::set_up_options made;
    made.deadline = clock_.now() + 10s;
    made.private_data = std::as_bytes(std::span(data));
    return made;
  }
  task<net::new_link> connect(std::string address, net::set_up_options options) {
    co_return co_await transport_->connect(address, options);
  }
  task<net::new_link> connect(std::string address) { return connect(std::move(address), how()); }
  task<std::unique_ptr<net::link>> accept(net::link_listener& from) {
    auto request = co_await from.next();
    if (request == nullptr) throw error(errc::closed, "the listener");
    const net::set_up_options options = how();
    co_return co_await request->accept(options);
  }
  /// A peer of ours gets through: whatever others did has not hurt the listener.
  task<> expect_service(net::link_listener& listener) {
    const auto both = co_await when_all(connect(std::string(listener.address())), accept(listener));
    EXPECT_TRUE(std::get<0>(both).link != nullptr && std::get<1>(both) != nullptr);
  }
  /// Of a listener at the loopback.
  template <class Listener>
  [[nodiscard]] static shm::unix_name name_of(const Listener& listener) {
    const auto where = parse_host_and_port(listener.address());
    sockaddr_in made{};
    made.sin_family = AF_INET;
    made.sin_port = htons(static_cast<std::uint16_t>(std::stoi(where.port)));
    made.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return shm::unix_name::of({reinterpret_cast<const sockaddr*>(&made), sizeof made});
  }

  net::set_up_statistics counts;

 private:
  manual_clock clock_{manual_clock::between_moves::goes};
  std::unique_ptr<net::transport> transport_ = shm::open_transport();
  executor home_;
};

/// Says that the peer of a socket is of another user.
class strangers : public system_calls {
 public:
  bool are_all = false;
  bool are_at_loopback = false;  ///< those that listen there
  int getsockopt(int fd, int level, int name, void* value, unsigned* length) noexcept override {
    const int result = system_calls::getsockopt(fd, level, name, value, length);
    const bool is_other = are_all || (are_at_loopback && peer_is_at_loopback(fd));
    if (is_other && name == SO_PEERCRED && result == 0) static_cast<ucred*>(value)->uid += 1;
    return result;
  }

 private:
  static bool peer_is_at_loopback(int fd) noexcept {
    sockaddr_un peer{};
    socklen_t length = sizeof peer;
    const bool is_named = ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
    return is_named && std::string_view(peer.sun_path + 1, sizeof peer.sun_path - 1).starts_with("weft/127.0.0.1");
  }
};

}  // namespace weft::test
