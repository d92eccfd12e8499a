// SPDX-License-Identifier: Apache-2.0
// echo_asio coroutines|callbacks: an echo server over TCP by Asio, in one of its styles. Prints its port.
#include <asio.hpp>

#include <cstdio>

#include "kit/standard.hpp"

namespace {

using asio::awaitable;
using asio::detached;
using asio::use_awaitable;
using asio::ip::tcp;

void say_port(const tcp::acceptor& acceptor) {
  std::printf("%d\n", acceptor.local_endpoint().port());
  std::fflush(stdout);
}

awaitable<void> serve(tcp::socket peer) try {
  std::array<std::byte, 4096> room;
  for (;;) {
    const std::size_t got = co_await peer.async_read_some(asio::buffer(room), use_awaitable);
    co_await asio::async_write(peer, asio::buffer(room, got), use_awaitable);
  }
} catch (const std::exception&) {  // the end of the stream, as Asio tells of it
}

awaitable<void> accept_all(tcp::acceptor& acceptor) {
  for (;;) {
    tcp::socket peer = co_await acceptor.async_accept(use_awaitable);
    peer.set_option(tcp::no_delay(true));
    asio::co_spawn(acceptor.get_executor(), serve(std::move(peer)), detached);
  }
}

class session : public std::enable_shared_from_this<session> {
 public:
  explicit session(tcp::socket peer) noexcept : peer_(std::move(peer)) {}

  void read() {
    peer_.async_read_some(asio::buffer(room_), [self = shared_from_this()](asio::error_code failure, std::size_t got) {
      if (!failure) self->write(got);
    });
  }

 private:
  void write(std::size_t size) {
    asio::async_write(peer_, asio::buffer(room_, size),
                      [self = shared_from_this()](asio::error_code failure, std::size_t) {
                        if (!failure) self->read();
                      });
  }

  tcp::socket peer_;
  std::array<std::byte, 4096> room_;
};

void accept_next(tcp::acceptor& acceptor) {
  acceptor.async_accept([&acceptor](asio::error_code failure, tcp::socket peer) {
    if (failure) return;
    peer.set_option(tcp::no_delay(true));
    std::make_shared<session>(std::move(peer))->read();
    accept_next(acceptor);
  });
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view style = argc == 2 ? argv[1] : "";
  asio::io_context home(1);
  tcp::acceptor acceptor(home, {asio::ip::address_v4::loopback(), 0});
  say_port(acceptor);
  if (style == "coroutines") {
    asio::co_spawn(home, accept_all(acceptor), detached);
  } else if (style == "callbacks") {
    accept_next(acceptor);
  } else {
    std::fputs("usage: echo_asio coroutines|callbacks\n", stderr);
    return 2;
  }
  home.run();
  return 0;
} catch (const std::exception& why) {
  std::fprintf(stderr, "echo_asio: %s\n", why.what());
  return 1;
}
