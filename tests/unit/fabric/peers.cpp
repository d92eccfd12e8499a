// SPDX-License-Identifier: Apache-2.0
#include "peers.hpp"

namespace weft::test {

using net::fabric::frame;
using net::fabric::frame_kind;

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
  EXPECT_TRUE(failed_with(co_await failure_of(of.recv()), cause));
}

task<> open_and_release_regions(net::device& device, std::size_t count) {
  std::vector<std::vector<std::byte>> memory(count, std::vector<std::byte>(100));
  std::vector<mr::region> open;
  const mr::registration_options purpose{.usage = mr::usage::write_dst};
  for (auto& each : memory) open.push_back(co_await device.register_memory(std::span<std::byte>(each), purpose));
  for (mr::region& each : open) co_await each.release();
}

sockaddr_in loopback_at(std::uint32_t host, std::uint16_t port) {
  sockaddr_in made{};
  made.sin_family = AF_INET;
  made.sin_port = htons(port);
  made.sin_addr.s_addr = htonl(host);
  return made;
}

void send_frame(const descriptor& socket, const frame& what) {
  std::array<std::byte, frame::max_bytes> words;
  const std::size_t bytes = net::fabric::pack(what, words);
  EXPECT_EQ(::send(socket.fd(), words.data(), bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

frame_kind say_hello(const descriptor& socket, std::uint16_t port, std::string_view of, const sockaddr_in& endpoint) {
  const sockaddr_in to = loopback_at(INADDR_LOOPBACK, port);
  EXPECT_EQ(::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  frame hello{.incoming_reads = 1, .outgoing_reads = 1, .token = 1};
  hello.set_name(net::fabric::device(net::fabric::fabric_calls::library(), of).provider());
  EXPECT_TRUE(hello.set_address(std::as_bytes(std::span(&endpoint, 1))));
  send_frame(socket, hello);
  std::array<std::byte, frame::max_bytes> words;
  EXPECT_GE(::recv(socket.fd(), words.data(), words.size(), 0), ssize_t{frame::header_bytes});
  frame answer;
  EXPECT_EQ(net::fabric::unpack(std::span(words).first<frame::header_bytes>(), answer),
            net::fabric::frame_status::good);
  return answer.kind;
}

raw_peer::raw_peer(std::uint16_t port, std::string_view of, const std::function<void(const sockaddr_in&)>& answered) {
  const sockaddr_in own = loopback_at(INADDR_LOOPBACK, port);
  EXPECT_EQ(say_hello(socket_, port, of, own), frame_kind::accept);
  if (answered) answered(own);
  send_frame(socket_, {.kind = frame_kind::ready});
}

void raw_peer::say(const net::fabric::control_record& what) const {
  const auto words = net::fabric::pack(what);
  static_cast<void>(::send(socket_.fd(), words.data(), words.size(), MSG_NOSIGNAL));
}

std::optional<net::fabric::control_record> raw_peer::hear() const {
  std::array<std::byte, net::fabric::control_record::bytes> words;
  if (::recv(socket_.fd(), words.data(), words.size(), MSG_WAITALL) != static_cast<ssize_t>(words.size())) return {};
  return net::fabric::unpack(words);
}

std::optional<net::fabric::control_record> raw_peer::hear(net::fabric::control_record::kind_t kind) const {
  auto heard = hear();
  while (heard && heard->kind != kind) heard = hear();
  return heard;
}

void raw_peer::wait_for_the_end() const {
  std::array<std::byte, 1024> words;
  while (::recv(socket_.fd(), words.data(), words.size(), 0) > 0) {
  }
}

std::uint16_t port_of(std::string_view address) {
  return static_cast<std::uint16_t>(std::stoul(std::string(address.substr(address.rfind(':') + 1))));
}

}  // namespace weft::test
