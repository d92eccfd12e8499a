// SPDX-License-Identifier: Apache-2.0
#include "net/raw_peer.hpp"

#include <weft/net/iwarp/mpa.hpp>
#include <weft/runtime/io/socket_address.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "runtime/support.hpp"

namespace weft::test {

using namespace net::iwarp;

namespace {

int checked(int result, const char* what) {
  if (result < 0) throw system_error(errno, what);
  return result;
}

descriptor tcp_socket() {
  const int fd = checked(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  const int yes = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return {fd, system_calls::kernel()};
}

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void connect_to(const descriptor& socket, std::string_view address) {
  const auto where = parse_host_and_port(address);
  sockaddr_in target = loopback(std::stoi(where.port));
  ::inet_pton(AF_INET, where.host.c_str(), &target.sin_addr);  // if it is a number
  checked(::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&target), sizeof target), "connect");
}

std::string bind_to_loopback(const descriptor& socket) {
  sockaddr_in own = loopback(0);
  socklen_t length = sizeof own;
  auto* const generic = reinterpret_cast<sockaddr*>(&own);
  checked(::bind(socket.fd(), generic, length), "bind");
  checked(::getsockname(socket.fd(), generic, &length), "getsockname");
  return "127.0.0.1:" + std::to_string(ntohs(own.sin_port));
}

std::string listen_on_loopback(const descriptor& socket, int backlog) {
  std::string address = bind_to_loopback(socket);
  checked(::listen(socket.fd(), backlog), "listen");
  return address;
}

bytes operator+(bytes left, std::span<const std::byte> right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

template <class Header>
bytes ulpdu_of(const Header& header, std::span<const std::byte> payload) {
  bytes front(Header::bytes);
  encode(header, std::span(front).template first<Header::bytes>());
  return front + payload;
}

}  // namespace

bytes text(std::string_view words) {
  const auto view = std::as_bytes(std::span(words));
  return {view.begin(), view.end()};
}

bytes greeting_bytes(std::uint16_t receive_depth, std::uint32_t receive_size) {
  net::greeting self;
  self.receive_depth = receive_depth;
  self.receive_size = receive_size;
  const auto packed = self.pack();
  return {packed.begin(), packed.end()};
}

bytes greeting_with(std::size_t at, std::uint8_t bits) {
  bytes said = greeting_bytes();
  said[at] |= std::byte{bits};
  return said;
}

bytes trailer_bytes(const net::trailer& end) {
  net::trailer::storage room;
  const auto packed = end.pack(room);
  return {packed.begin(), packed.end()};
}

bytes frame_bytes(const mpa::frame& frame) {
  bytes out(mpa::max_frame_bytes);
  out.resize(mpa::encode_frame(frame, out));
  return out;
}

bytes tagged_ulpdu(const tagged_header& header, std::span<const std::byte> payload) {
  return ulpdu_of(header, payload);
}

bytes untagged_ulpdu(const untagged_header& header, std::span<const std::byte> payload) {
  return ulpdu_of(header, payload);
}

bytes request_frame(bool crc) {
  const bytes greeting = greeting_bytes();
  const mpa::frame frame{.crc = crc,
                         .enhanced = mpa::enhanced_data{.ird = 16, .ord = 16, .peer_to_peer = true, .rtr_write = true},
                         .private_data = greeting};
  return frame_bytes(frame);
}

namespace {

bytes reply_with(std::span<const std::byte> private_data, bool crc, bool rejected) {
  const mpa::frame frame{.kind = mpa::frame_kind::reply,
                         .crc = crc,
                         .rejected = rejected,
                         .enhanced = mpa::enhanced_data{.ird = 16, .ord = 16, .peer_to_peer = true, .rtr_write = true},
                         .private_data = private_data};
  return frame_bytes(frame);
}

}  // namespace

bytes reply_frame(bool crc, bool rejected) { return reply_with(greeting_bytes(), crc, rejected); }

bytes rejection_frame(std::string_view said) { return reply_with(std::as_bytes(std::span(said)), false, true); }

raw_peer raw_peer::connect(std::string_view address, int segment_bytes, const char* from) {
  descriptor socket = tcp_socket();
  if (segment_bytes != 0) {
    checked(::setsockopt(socket.fd(), IPPROTO_TCP, TCP_MAXSEG, &segment_bytes, sizeof segment_bytes), "setsockopt");
  }
  if (from != nullptr) {
    sockaddr_in source = loopback(0);
    ::inet_pton(AF_INET, from, &source.sin_addr);
    checked(::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&source), sizeof source), "bind");
  }
  connect_to(socket, address);
  return raw_peer(std::move(socket));
}

task<> raw_peer::set_up(std::span<const std::byte> private_data, bool crc) {
  const initiator_options how{.crc = crc, .private_data = private_data};
  static_cast<void>(co_await set_up(how));
}

task<bytes> raw_peer::answer(std::span<const std::byte> reply) {
  bytes request(mpa::frame_header_bytes);
  co_await receive(request);
  const std::size_t private_bytes =
      std::to_integer<std::size_t>(request[18]) << 8 | std::to_integer<std::size_t>(request[19]);
  request.resize(request.size() + private_bytes);
  co_await receive(std::span(request).subspan(mpa::frame_header_bytes));
  co_await send(reply);
  co_return request;
}

task<parameters> raw_peer::set_up(initiator_options how) {
  initiator machine(how);
  for (;;) {
    while (!machine.output().empty()) {
      const auto out = machine.output();
      co_await send_all(*socket_, out);
      machine.sent(out.size());
    }
    if (machine.state() != handshake_state::waiting) break;
    std::array<std::byte, 1> next;  // not a byte too many
    const int count = co_await receive_some(*socket_, next);
    if (count <= 0) throw error(errc::peer_vanished, "the set-up of a raw peer");
    machine.consume(next);
  }
  if (machine.state() != handshake_state::established) throw error(errc::protocol_error, "the set-up of a raw peer");
  crc_ = machine.agreed().crc;
  co_return machine.agreed();
}

task<> raw_peer::send(std::span<const std::byte> what) { return send_all(*socket_, what); }

void raw_peer::send_now(std::span<const std::byte> what) {
  const ssize_t sent = ::send(socket_->fd(), what.data(), what.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(what.size())) throw system_error(errno, "send");
}

std::size_t raw_peer::send_what_fits(std::span<const std::byte> what) {
  const ssize_t sent = ::send(socket_->fd(), what.data(), what.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno != EAGAIN) throw system_error(errno, "send");
  return sent < 0 ? 0 : static_cast<std::size_t>(sent);
}

bytes raw_peer::fpdu(std::span<const std::byte> ulpdu) const {
  bytes out(mpa::fpdu_bytes(ulpdu.size()));
  mpa::encode_fpdu(ulpdu, crc_, out);
  return out;
}

task<> raw_peer::send_fpdu(std::span<const std::byte> ulpdu, bool spoil_crc) {
  bytes whole = fpdu(ulpdu);
  if (spoil_crc) whole.back() ^= std::byte{1};
  co_await send_all(*socket_, whole);
}

bytes raw_peer::next_message_fpdu(std::size_t size) {
  return fpdu(untagged_ulpdu({.opcode = opcode::send, .sequence = next_message_++}, bytes(size)));
}

task<> raw_peer::send_message(std::span<const std::byte> body) {
  const bytes ulpdu = untagged_ulpdu({.opcode = opcode::send, .sequence = next_message_++}, body);
  co_await send_fpdu(ulpdu);
}

task<> raw_peer::send_message(std::span<const std::byte> payload, std::uint8_t kind, std::uint32_t credits) {
  bytes end = trailer_bytes({.credits = credits});
  end[0] = static_cast<std::byte>(kind);
  const bytes body = bytes(payload.begin(), payload.end()) + end;
  co_await send_message(body);
}

task<> raw_peer::write(std::uint32_t stag, std::uint64_t offset, std::span<const std::byte> data) {
  const bytes ulpdu = tagged_ulpdu({.opcode = opcode::write, .stag = stag, .offset = offset}, data);
  co_await send_fpdu(ulpdu);
}

task<> raw_peer::read(std::uint32_t stag, std::uint64_t offset, std::uint32_t size) {
  bytes body(read_request::bytes);
  const read_request read{.sink_stag = 7, .sink_offset = 0, .size = size, .source_stag = stag, .source_offset = offset};
  encode(read, std::span(body).first<read_request::bytes>());
  const bytes ulpdu =
      untagged_ulpdu({.opcode = opcode::read_request, .queue = read_request_queue, .sequence = next_read_++}, body);
  co_await send_fpdu(ulpdu);
}

bytes raw_peer::terminate(terminate_code code) const {
  std::array<std::byte, terminate_message::max_bytes> body;
  const terminate_message message{.code = code};
  const std::size_t size = encode(message, body);
  return fpdu(untagged_ulpdu({.opcode = opcode::terminate, .queue = terminate_queue}, std::span(body).first(size)));
}

task<> raw_peer::receive(std::span<std::byte> where) { return receive_all(*socket_, where); }

task<bytes> raw_peer::receive_fpdu() {
  std::array<std::byte, mpa::length_bytes> length;
  try {
    co_await receive_all(*socket_, length);
  } catch (const error&) {
    co_return bytes();
  }
  const std::size_t size = std::to_integer<std::size_t>(length[0]) << 8 | std::to_integer<std::size_t>(length[1]);
  bytes rest(mpa::fpdu_bytes(size) - length.size());
  co_await receive_all(*socket_, rest);
  rest.resize(size);
  co_return rest;
}

task<std::optional<terminate_code>> raw_peer::receive_terminate() {
  for (;;) {
    const bytes ulpdu = co_await receive_fpdu();
    if (ulpdu.size() < control_bytes) co_return std::nullopt;
    const control front = parse_control(std::span(ulpdu).first<control_bytes>());
    if (front.opcode != opcode::terminate) continue;
    if (ulpdu.size() < untagged_header::bytes) co_return std::nullopt;
    const auto said = parse_terminate(std::span(ulpdu).subspan(untagged_header::bytes));
    if (!said) co_return std::nullopt;
    co_return said->code;
  }
}

task<bytes> raw_peer::receive_rest() {
  bytes all;
  std::array<std::byte, 4096> piece;
  for (;;) {
    const int count = co_await receive_some(*socket_, piece);
    if (count <= 0) co_return all;
    all.insert(all.end(), piece.begin(), piece.begin() + count);
  }
}

bool raw_peer::is_reset() const noexcept {
  pollfd state{.fd = socket_->fd(), .events = 0, .revents = 0};
  return ::poll(&state, 1, 0) == 1 && (state.revents & POLLERR) != 0;
}

void raw_peer::finish() noexcept { ::shutdown(socket_->fd(), SHUT_WR); }

void raw_peer::reset() noexcept {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(socket_->fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  socket_->close();
}

deaf_listener::deaf_listener()
    : socket_(tcp_socket()), filling_(tcp_socket()), address_(listen_on_loopback(socket_, 0)) {
  connect_to(filling_, address_);
}

deserted_port::deserted_port() : socket_(tcp_socket()) {
  const int yes = 1;  // so that a test may connect from there
  checked(::setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), "setsockopt");
  address_ = bind_to_loopback(socket_);
}

raw_listener::raw_listener()
    : socket_(std::make_unique<descriptor>(tcp_socket())), address_(listen_on_loopback(*socket_, 64)) {}

task<raw_peer> raw_listener::accept() {
  detail::io_wait call(io_kind::accept, *socket_);
  const int fd = co_await call;
  if (fd < 0) throw system_error(-fd, "accept");
  co_return raw_peer(descriptor(fd, system_calls::kernel()));
}

}  // namespace weft::test
