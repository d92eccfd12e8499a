// SPDX-License-Identifier: Apache-2.0
// What TCP says of a connection that is lost, tcp(7): an error, told once, to whoever asks first.
#include <weft/net/stream.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>

#include "net/support.hpp"

namespace weft::test {
namespace {

// From a moment on, sends are told that the peer is gone; what is received then looks as if it had closed.
class network_that_is_lost : public system_calls {
 public:
  ssize_t sendmsg(int fd, const msghdr* message, int flags) noexcept override {
    return lost_ ? -told_ : system_calls::sendmsg(fd, message, flags);
  }
  int getsockopt(int fd, int level, int name, void* value, socklen_t* length) noexcept override {
    const int result = system_calls::getsockopt(fd, level, name, value, length);
    if (lost_ && level == IPPROTO_TCP && name == TCP_INFO && *length >= sizeof(tcp_info)) {
      auto& about = *static_cast<tcp_info*>(value);
      about.tcpi_state = TCP_CLOSE;
      about.tcpi_last_ack_recv = 10'000;
      about.tcpi_retransmits = was_asked_ ? 1 : 0;
    }
    return result;
  }
  ssize_t recvmsg(int fd, msghdr* message, int flags) noexcept override {
    return lost_ ? 0 : system_calls::recvmsg(fd, message, flags);
  }
  int permit_ring_operation(std::uint8_t operation) noexcept override {
    return lost_ && static_cast<io_kind>(operation) == io_kind::send ? -told_ : 0;
  }

 protected:
  bool lost_ = false;
  int told_ = ETIMEDOUT;
  bool was_asked_ = true;  // the peer, in vain
};

class lost_connection : public network_that_is_lost, public net_test {
 protected:
  lost_connection() : net_test(static_cast<system_calls&>(*this)) {}
  void expect_words_of_silence();
};

TEST_F(lost_connection, whose_error_a_send_was_told_does_not_look_as_if_the_peer_had_closed) {
  expect_words_of_silence();
}

// As io_uring does, where a part of the same send had gone before.
TEST_F(lost_connection, whose_error_nobody_was_told_does_not_look_as_if_the_peer_had_closed) {
  told_ = EPIPE;
  expect_words_of_silence();
}

// It has closed, and its machine has reset the connection, while this end did not look for longer than a peer may be
// silent.
TEST_F(lost_connection, that_the_peer_has_ended_long_ago_does_not_look_as_if_the_peer_had_been_silent) {
  told_ = EPIPE;
  was_asked_ = false;
  against_raw_client([&](raw_peer&, net::connection& ours) -> task<> {
    auto payload = co_await pool().allocate(1000);
    lost_ = true;
    const auto failure = co_await failure_of(ours.send(std::move(payload)));
    EXPECT_TRUE(failed_with(failure, errc::peer_vanished));
    EXPECT_FALSE(contains(failure, "timed out")) << words_of(failure);
  });
}

void lost_connection::expect_words_of_silence() {
  against_raw_client([&](raw_peer&, net::connection& ours) -> task<> {
    auto payload = co_await pool().allocate(1000);  // a smaller message is sent once its send has ended
    lost_ = true;
    const auto both = co_await when_all(failure_of(ours.send(std::move(payload))), failure_of(ours.recv()));
    for (const auto& failure : {std::get<0>(both), std::get<1>(both)}) {
      EXPECT_TRUE(failed_with(failure, errc::peer_vanished, "Connection timed out"));
    }
  });
}

// Both ends are here, with the kernel's own TCP and in its time: its patience ends where a peer does not read, although
// the peer's machine answers.
class a_closed_window : public net_test {
 protected:
  // Long enough for an executor on a busy machine to look in between.
  static constexpr auto dead_peer_after = 2000ms;
  static constexpr auto look_away = 3 * dead_peer_after;

  static net::connection_options plain() {
    net::connection_options options{
        .receive_depth = 4, .close_timeout = 60s, .dead_peer_after = dead_peer_after, .profile = net::profile::interop};
    return options;
  }
};

TEST_F(a_closed_window, of_a_peer_that_receives_later_ends_no_connection) {
  constexpr std::size_t messages = 8192;  // more than the sockets hold
  std::size_t received = 0;
  run([&]() -> task<> {
    auto listener = co_await listen();
    const auto serve = [&]() -> task<> {
      auto peer = co_await accept(listener, plain());
      co_await sleep_for(look_away);
      while (co_await peer.recv()) ++received;
    };
    const auto call = [&]() -> task<> {
      auto peer = co_await device().connect(std::string(listener.address()), plain());
      for (std::size_t i = 0; i < messages; ++i) co_await peer.send(co_await pool().allocate(4096));
      co_await peer.close();
    };
    co_await when_all(serve(), call());
  });
  EXPECT_EQ(received, messages);
}

TEST_F(a_closed_window, of_a_peer_that_reads_a_plain_stream_later_ends_no_stream) {
  constexpr std::size_t bytes = std::size_t{32} << 20;
  std::size_t received = 0;
  run([&]() -> task<> {
    auto listener = co_await net::stream_listener::listen(device(), "tcp://127.0.0.1:0");
    const auto serve = [&]() -> task<> {
      auto request = co_await listener.next();
      auto peer = co_await request->accept(plain());
      co_await sleep_for(look_away);
      std::vector<std::byte> room(1 << 16);
      while (const std::size_t some = co_await peer.read_some(room)) received += some;
    };
    const auto call = [&]() -> task<> {
      auto peer = co_await net::stream::connect(device(), std::string(listener.address()), plain());
      const std::vector<std::byte> all(bytes);
      co_await peer.write(all);
      co_await peer.shutdown_send();
      std::vector<std::byte> nothing(1);
      EXPECT_EQ(co_await peer.read_some(nothing), 0U);
    };
    co_await when_all(serve(), call());
  });
  EXPECT_EQ(received, bytes);
}

}  // namespace
}  // namespace weft::test
