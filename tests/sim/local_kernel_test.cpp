// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/transport.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "kit/failure.hpp"
#include "two_ends.hpp"

namespace weft::sim {
namespace {

using namespace std::chrono_literals;

constexpr std::uint16_t dying_port = 20'000;

class simulated_processes : public ::testing::Test, protected two_ends {
 protected:
  simulated_processes() : two_ends(7, [](system_calls& calls) { return net::shm::open_transport({}, calls); }) {
    place.local().port_of_hello = [](std::span<const std::byte>) { return dying_port; };
  }

  task<> send(net::connection& peer, std::byte what) {
    mr::buffer text = co_await device->pool().allocate(1);
    text.bytes()[0] = what;
    co_await peer.send(std::move(text));
  }
};

TEST_F(simulated_processes, that_die_leave_what_they_had_published_and_nothing_else) {
  const auto server = [this](net::connection& peer) -> task<> {
    for (unsigned i = 0; i < 3; ++i) co_await send(peer, static_cast<std::byte>(i));
    place.local().kill(dying_port);
    static_cast<void>(co_await as_result(send(peer, std::byte{3})));
  };
  const auto client = [](net::connection& peer) -> task<> {
    for (unsigned i = 0; i < 3; ++i) {
      const net::message got = co_await peer.recv_or_throw();
      EXPECT_EQ(got.bytes()[0], static_cast<std::byte>(i));
    }
    EXPECT_EQ(co_await test::code_of(peer.recv()), errc::peer_vanished);
  };
  run(server, client);
  EXPECT_TRUE(place.disturbed(dying_port));
  EXPECT_EQ(place.faults(), 1U);
}

// Who has the memory of the other one mapped.
TEST_F(simulated_processes, that_die_see_nothing_more_of_each_other_in_memory_that_was_lent) {
  constexpr std::size_t page = 4096;
  std::optional<mr::region> region;
  event lent;
  const auto server = [&](net::connection& peer) -> task<> {
    mr::mapping memory = mr::mapping::in_memory_file(page, false, -1, place);
    const mr::registration_options how{.usage = mr::usage::read_src | mr::usage::write_dst, .direct = true};
    region.emplace(co_await device->domain().register_memory(std::move(memory), how));
    lent.set();
    while (co_await as_result(peer.recv_or_throw())) {
    }
    co_await region->release();
  };
  const auto client = [&](net::connection& peer) -> task<> {
    co_await lent.wait();
    const mr::remote_slice where = region->remote().slice(0, 8);
    mr::buffer word = co_await device->pool().allocate(8);
    std::fill_n(word.bytes().begin(), 8, std::byte{'c'});
    for (int i = 0; i < 100; ++i) co_await peer.write(word, where);
    co_await peer.flush(where);
    place.local().kill(dying_port, 1ms);
    EXPECT_TRUE(place.local().is_dead(dying_port));
    std::fill_n(word.bytes().begin(), 8, std::byte{'d'});
    co_await peer.write(word, where);
    EXPECT_EQ(region->bytes()[0], std::byte{'c'});
    std::fill_n(region->data(), 8, std::byte{'s'});
    co_await peer.read(word, where);
    EXPECT_EQ(word.bytes()[0], std::byte{'d'});
  };
  run(server, client);
}

TEST_F(simulated_processes, that_have_gone_disturb_nobody_when_they_are_to_die) {
  const auto harm = [this] {
    place.local().kill(dying_port);
    place.local().kill_in_send(dying_port, true);
    place.local().kill_in_call(dying_port, 1);
    place.local().stall(dying_port, 1ms);
  };
  harm();
  const auto close = [](net::connection& peer) -> task<> { co_await peer.close(); };
  run(close, close);
  harm();
  EXPECT_FALSE(place.disturbed(dying_port));
  EXPECT_EQ(place.faults(), 0U);
}

// A pair of sockets, one of which an epoll watches.
class simulated_epoll : public ::testing::Test {
 protected:
  simulated_epoll() {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, "\0here", 5);
    const auto* const where = reinterpret_cast<const sockaddr*>(&name);
    constexpr socklen_t length = offsetof(sockaddr_un, sun_path) + 5;
    const int listener = open();
    EXPECT_EQ(kernel.bind(listener, where, length), 0);
    EXPECT_EQ(kernel.listen(listener, 1), 0);
    EXPECT_EQ(kernel.connect(client, where, length), 0);
    descriptor listening(listener, kernel);
    io_nothing accepting(listening);
    server = kernel.local().attempt(accepting);
    EXPECT_EQ(kernel.epoll_ctl(set, EPOLL_CTL_ADD, server, &wanted), 0);
  }
  ~simulated_epoll() override { EXPECT_EQ(kernel.leaks(), ""); }

  struct io_nothing final : io_operation {
    explicit io_nothing(descriptor& where) noexcept : io_operation(io_kind::accept) { target = &where; }
    void complete(int) noexcept override {}
  };
  int open() { return kernel.socket(AF_UNIX, SOCK_SEQPACKET, 0); }
  void send() {
    std::byte nothing{};
    iovec piece{.iov_base = &nothing, .iov_len = 1};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    EXPECT_EQ(kernel.sendmsg(client, &message, 0), 1);
  }
  /// What is told, 0 if it is nothing.
  std::uint32_t news() {
    epoll_event told{};
    return kernel.epoll_wait(set, &told, 1, 0) == 1 ? told.events : 0;
  }

  world kernel{7, {.longest_delay_ns = 0, .spurious_share = 0}};
  int client = open();
  int server = -1;
  int set = kernel.epoll_create1(0);
  epoll_event wanted{.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data = {}};
};

TEST_F(simulated_epoll, tells_of_each_packet_once_and_of_the_end) {
  EXPECT_EQ(news(), 0U);
  send();
  EXPECT_EQ(news(), EPOLLIN);
  EXPECT_EQ(news(), 0U);  // though nobody has read it
  send();
  send();
  EXPECT_EQ(news(), EPOLLIN);
  EXPECT_EQ(news(), 0U);
  kernel.close(client);
  EXPECT_EQ(news(), EPOLLIN | EPOLLRDHUP | EPOLLHUP);
  kernel.epoll_ctl(set, EPOLL_CTL_DEL, server, nullptr);
  kernel.close(server);
  kernel.close(set);
}

TEST_F(simulated_epoll, tells_a_socket_that_is_added_of_what_has_come_before) {
  kernel.epoll_ctl(set, EPOLL_CTL_DEL, server, nullptr);
  send();
  EXPECT_EQ(kernel.epoll_ctl(set, EPOLL_CTL_ADD, server, &wanted), 0);
  EXPECT_EQ(news(), EPOLLIN);
  kernel.epoll_ctl(set, EPOLL_CTL_DEL, server, nullptr);
  for (const int fd : {client, server, set}) kernel.close(fd);
}

}  // namespace
}  // namespace weft::sim
