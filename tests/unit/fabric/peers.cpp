// SPDX-License-Identifier: Apache-2.0
#include "peers.hpp"

#include <sys/socket.h>
#include <unistd.h>

namespace weft::test {
namespace {

void send(int socket, const net::fabric::frame& what) {
  std::array<std::byte, net::fabric::frame::max_bytes> words;
  const std::size_t bytes = net::fabric::pack(what, words);
  EXPECT_EQ(::send(socket, words.data(), bytes, 0), static_cast<ssize_t>(bytes));
}

}  // namespace

net::connection_options few_receives() {
  net::connection_options how{.receive_depth = 10, .close_timeout = std::chrono::hours(1)};
  return how;
}

task<net::connection> accept_one(net::listener& from) {
  auto request = co_await from.next();
  if (!request) throw error(errc::closed, "the listener");
  co_return co_await request->accept(few_receives());
}

task<> exchange(net::connection& from, net::connection& to, mr::pool& pool) {
  constexpr std::string_view words = "weft over libfabric";
  auto note = co_await pool.allocate(words.size());
  std::memcpy(note.data(), words.data(), words.size());
  co_await from.send(std::move(note));
  const auto message = co_await to.recv_or_throw();
  EXPECT_TRUE(std::ranges::equal(message.bytes(), std::as_bytes(std::span(words))));
}

task<> expect_end(net::connection& of, std::error_code cause) {
  const auto failure = co_await failure_of(of.recv());
  EXPECT_TRUE(failure && failure->code() == cause) << words_of(failure);
}

raw_peer::raw_peer(std::uint16_t port, std::string_view of, const std::function<void(const sockaddr_in&)>& answered)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  net::fabric::frame hello{.incoming_reads = 1, .outgoing_reads = 1, .token = 1};
  hello.set_name(of);
  EXPECT_TRUE(hello.set_address(std::as_bytes(std::span(&to, 1))));
  send(socket_, hello);
  std::array<std::byte, net::fabric::frame::max_bytes> answer;
  EXPECT_GT(::recv(socket_, answer.data(), answer.size(), 0), 0);
  if (answered) answered(to);
  send(socket_, {.kind = net::fabric::frame_kind::ready});
}

raw_peer::~raw_peer() { ::close(socket_); }

void raw_peer::say(const net::fabric::control_record& what) const {
  const auto words = net::fabric::pack(what);
  static_cast<void>(::send(socket_, words.data(), words.size(), MSG_NOSIGNAL));
}

std::optional<net::fabric::control_record> raw_peer::hear() const {
  std::array<std::byte, net::fabric::control_record::bytes> words;
  if (::recv(socket_, words.data(), words.size(), MSG_WAITALL) != static_cast<ssize_t>(words.size())) return {};
  return net::fabric::unpack(words);
}

std::optional<net::fabric::control_record> raw_peer::hear(net::fabric::control_record::kind_t kind) const {
  auto heard = hear();
  while (heard && heard->kind != kind) heard = hear();
  return heard;
}

void raw_peer::wait_for_the_end() const {
  std::array<std::byte, 1024> words;
  while (::recv(socket_, words.data(), words.size(), 0) > 0) {
  }
}

std::uint16_t port_of(std::string_view address) {
  return static_cast<std::uint16_t>(std::stoul(std::string(address.substr(address.rfind(':') + 1))));
}

}  // namespace weft::test
