// SPDX-License-Identifier: Apache-2.0
// What the benchmark measures weft against. In each round the sender writes the numbers of the places, and then the
// blocks in that order, straight from where they are; the receiver reads them straight to where they belong, and
// answers with one byte.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <system_error>

#include "bench_plan.hpp"
#include "two_processes.hpp"

namespace kvcache {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::system_category(), what); }

class socket_handle {
 public:
  explicit socket_handle(int fd) : fd_(fd) {
    if (fd_ < 0) fail("socket");
  }
  socket_handle(const socket_handle&) = delete;
  socket_handle& operator=(const socket_handle&) = delete;
  ~socket_handle() { ::close(fd_); }

  [[nodiscard]] int fd() const noexcept { return fd_; }
  void set_up(bool spin) const {
    const int on = 1;
    if (::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail("setsockopt");
    if (spin && ::fcntl(fd_, F_SETFL, O_NONBLOCK) != 0) fail("fcntl");
  }

 private:
  int fd_;
};

iovec piece(std::byte* at, std::size_t bytes) noexcept { return {.iov_base = at, .iov_len = bytes}; }

/// Takes `done` bytes off the front.
std::span<iovec> without(std::span<iovec> pieces, std::size_t done) noexcept {
  while (!pieces.empty() && done >= pieces.front().iov_len) {
    done -= pieces.front().iov_len;
    pieces = pieces.subspan(1);
  }
  if (done == 0) return pieces;
  pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + done;
  pieces.front().iov_len -= done;
  return pieces;
}

/// Moves all pieces by `call`, writev(2) or readv(2), as many at a time as it takes.
template <class Call>
void move_all(int fd, std::span<iovec> pieces, const Call& call, const char* name) {
  while (!pieces.empty()) {
    const auto count = static_cast<int>(std::min<std::size_t>(pieces.size(), IOV_MAX));
    const ssize_t done = call(fd, pieces.data(), count);
    if (done == 0) throw failure("the other process has gone");
    if (done < 0 && errno != EINTR && errno != EAGAIN) fail(name);
    if (done > 0) pieces = without(pieces, static_cast<std::size_t>(done));
  }
}

void send_all(const socket_handle& to, std::span<iovec> pieces) { move_all(to.fd(), pieces, ::writev, "writev"); }
void receive_all(const socket_handle& from, std::span<iovec> pieces) { move_all(from.fd(), pieces, ::readv, "readv"); }

iovec piece_of(std::vector<std::uint32_t>& numbers) noexcept {
  const auto bytes = std::as_writable_bytes(std::span(numbers));
  return piece(bytes.data(), bytes.size());
}

void send_round(const socket_handle& to, const bench_options& options, std::byte* source,
                std::span<const weft::net::block_pair> pairs) {
  std::vector<std::uint32_t> places(pairs.size());
  std::vector<iovec> pieces{piece_of(places)};
  pieces.reserve(pairs.size() + 1);
  for (std::size_t i = 0; i != pairs.size(); ++i) {
    places[i] = pairs[i].remote;
    pieces.push_back(piece(source + pairs[i].local * options.block_bytes, options.block_bytes));
  }
  send_all(to, pieces);
}

void receive_round(const socket_handle& from, const bench_options& options, std::byte* target) {
  std::vector<std::uint32_t> places(options.blocks);
  iovec header = piece_of(places);
  receive_all(from, {&header, 1});
  std::vector<iovec> pieces;
  pieces.reserve(places.size());
  for (const std::uint32_t place : places) {
    if (place >= options.blocks) throw failure("the sender names a place that there is not");
    pieces.push_back(piece(target + place * options.block_bytes, options.block_bytes));
  }
  receive_all(from, pieces);
}

void receive_rounds(const socket_handle& listener, const bench_options& options) {
  const socket_handle client(::accept(listener.fd(), nullptr, nullptr));
  client.set_up(options.spin);
  const auto target = make_target(options);
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    receive_round(client, options, target.data());
    if (round == 0) check_target(options, round, {target.data(), bytes_of(options)});
    std::byte answer{};
    iovec all = piece(&answer, 1);
    send_all(client, {&all, 1});
  }
}

std::vector<double> send_rounds(const socket_handle& server, const bench_options& options) {
  const auto source = make_source(options);
  std::vector<double> seconds;
  for (std::uint32_t round = 0; round <= options.rounds; ++round) {
    const auto pairs = pairs_of_round(options, round);
    const auto start = bench_clock::now();
    send_round(server, options, source.data(), pairs);
    std::byte answer{};
    iovec all = piece(&answer, 1);
    receive_all(server, {&all, 1});
    const std::chrono::duration<double> time = bench_clock::now() - start;
    if (round != 0) seconds.push_back(time.count());
  }
  return seconds;
}

socket_handle make_socket() { return socket_handle(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

}  // namespace

std::vector<double> run_tcp(const bench_options& options) {
  const socket_handle listener = make_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.fd(), any, length) != 0 || ::listen(listener.fd(), 1) != 0) fail("listen");
  if (::getsockname(listener.fd(), any, &length) != 0) fail("getsockname");

  const auto receive = [&] { receive_rounds(listener, options); };
  other_process receiver(receive);
  const socket_handle server = make_socket();
  if (::connect(server.fd(), any, length) != 0) fail("connect");
  server.set_up(options.spin);
  auto seconds = send_rounds(server, options);
  receiver.join();
  return seconds;
}

}  // namespace kvcache
