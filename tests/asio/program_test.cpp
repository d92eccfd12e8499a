// SPDX-License-Identifier: Apache-2.0
// The program runs on sockets, and on streams of weft, by changing the stream's type alone.
#include "program.hpp"

#include <weft/net/asio.hpp>
#include <weft/net/device.hpp>
#include <weft/net/stream_listener.hpp>

#include "kit/test.hpp"
#include <tls/certificate.hpp>

namespace weft {
namespace {

TEST(asio_program_death, parts_with_the_other_asio_end_the_program_with_words) {
  EXPECT_DEATH(detail::require_one_asio(WEFT_BOOST_ASIO ? "Asio" : "Boost.Asio"), "weft: .* define WEFT_BOOST_ASIO");
}

using asio::awaitable;
using asio::use_awaitable;

// How each kind of stream comes to be; the only part that knows which it is.

class sockets {
 public:
  using stream = asio::ip::tcp::socket;
  explicit sockets(asio::io_context& io) : io_(io) {}

  awaitable<void> connect(std::optional<stream>& a, std::optional<stream>& b) {
    using asio::ip::tcp;
    tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    a.emplace(io_);
    co_await a->async_connect(acceptor.local_endpoint(), use_awaitable);
    b.emplace(co_await acceptor.async_accept(use_awaitable));
  }

 private:
  asio::io_context& io_;
};

template <const char* address>
class streams {
 public:
  using stream = net::stream;
  explicit streams(asio::io_context& io) : host_(io) {}

  awaitable<void> connect(std::optional<stream>& a, std::optional<stream>& b) {
    using namespace asio::experimental::awaitable_operators;
    auto listener = co_await host_.async(net::stream_listener::listen(device_, address), use_awaitable);
    const auto accept = [&]() -> awaitable<void> {
      auto request = co_await host_.async(listener->next(), use_awaitable);
      b.emplace(co_await host_.async(request->accept(), use_awaitable));
    };
    const auto connect = [&]() -> awaitable<void> {
      const std::string target(listener->address());
      a.emplace(co_await host_.async(net::stream::connect(device_, target), use_awaitable));
    };
    co_await (accept() && connect());
  }

 private:
  net::device device_ = net::device::open("iwarp");
  asio_host host_;
};

constexpr char over_iwarp[] = "iwarp://127.0.0.1:0";
constexpr char over_plain_tcp[] = "tcp://127.0.0.1:0";

template <class Kind>
class asio_program : public testing::Test {
 protected:
  using stream = typename Kind::stream;

  /// Runs `script(a, b)` on two streams that are connected.
  template <class Script>
  void between(Script script) {
    const auto body = [&]() -> awaitable<void> {
      std::optional<stream> a;
      std::optional<stream> b;
      co_await kind_.connect(a, b);
      co_await script(*a, *b);
    };
    std::exception_ptr failure;
    asio::co_spawn(io_, body(), [&](std::exception_ptr what) { failure = std::move(what); });
    io_.run();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  asio::io_context io_{1};
  Kind kind_{io_};
};

struct names {
  template <class Kind>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): GoogleTest's name
    if (std::is_same_v<Kind, sockets>) return "tcp_socket";
    return std::is_same_v<Kind, streams<over_iwarp>> ? "weft_over_iwarp" : "weft_over_tcp";
  }
};
using kinds = testing::Types<sockets, streams<over_iwarp>, streams<over_plain_tcp>>;
TYPED_TEST_SUITE(asio_program, kinds, names);

TYPED_TEST(asio_program, lines_are_answered_until_the_peer_has_no_more) {
  using namespace asio::experimental::awaitable_operators;
  this->between([](auto& a, auto& b) -> awaitable<void> {
    const auto ask = [&]() -> awaitable<void> {
      co_await program::ask_lines(a);
      a.close();
    };
    const auto answer = [&]() -> awaitable<void> {
      EXPECT_EQ(co_await program::answer_lines(b, std::chrono::hours(1)), 50);
    };
    co_await (ask() && answer());
  });
}

TYPED_TEST(asio_program, a_timer_wins_over_a_silent_peer) {
  this->between([](auto& a, auto& b) -> awaitable<void> {
    EXPECT_EQ(co_await program::answer_lines(b, std::chrono::milliseconds(2)), 0);
    std::string words;
    co_await asio::async_read_until(a, asio::dynamic_buffer(words), '\n', use_awaitable);
    EXPECT_EQ(words, "bored\n");
  });
}

TYPED_TEST(asio_program, much_goes_both_ways_at_once) {
  this->between([](auto& a, auto& b) { return program::exchange_much(a, b); });
}

TYPED_TEST(asio_program, stopped_reads_lose_no_byte) {
  this->between([](auto& a, auto& b) { return program::stop_reads(a, b); });
}

TYPED_TEST(asio_program, one_direction_closes_before_the_other) {
  this->between([](auto& a, auto& b) { return program::half_close(a, b); });
}

TYPED_TEST(asio_program, handlers_are_called_once_whatever_becomes_of_the_stream) {
  this->between([](auto& a, auto& b) { return program::close_with_handlers_waiting(std::move(a), std::move(b)); });
}

TYPED_TEST(asio_program, speaks_tls) {
  const tls::identity mine = tls::make_identity("test.example");
  asio::ssl::context server_side(asio::ssl::context::tls_server);
  server_side.use_certificate_chain(asio::buffer(mine.certificate));
  server_side.use_private_key(asio::buffer(mine.key), asio::ssl::context::pem);
  asio::ssl::context client_side(asio::ssl::context::tls_client);
  client_side.add_certificate_authority(asio::buffer(mine.certificate));
  client_side.set_verify_mode(asio::ssl::verify_peer);
  client_side.set_verify_callback(asio::ssl::host_name_verification("test.example"));
  this->between(
      [&](auto& a, auto& b) { return program::speak_tls(std::move(a), std::move(b), client_side, server_side); });
}

TYPED_TEST(asio_program, tls_refuses_strangers) {
  const tls::identity known = tls::make_identity("test.example");
  const tls::identity stranger = tls::make_identity("test.example");
  asio::ssl::context server_side(asio::ssl::context::tls_server);
  server_side.use_certificate_chain(asio::buffer(stranger.certificate));
  server_side.use_private_key(asio::buffer(stranger.key), asio::ssl::context::pem);
  asio::ssl::context distrustful(asio::ssl::context::tls_client);
  distrustful.add_certificate_authority(asio::buffer(known.certificate));
  distrustful.set_verify_mode(asio::ssl::verify_peer);
  this->between([&](auto& a, auto& b) {
    return program::refuse_strangers(std::move(a), std::move(b), distrustful, server_side);
  });
}

}  // namespace
}  // namespace weft
