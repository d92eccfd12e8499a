// SPDX-License-Identifier: Apache-2.0
// net::stream as a stream of Asio's.
#include <weft/net/asio.hpp>
#include <weft/net/device.hpp>
#include <weft/net/stream_listener.hpp>

#include <asio/experimental/awaitable_operators.hpp>

#include "asio_run.hpp"
#include "runtime/support.hpp"

namespace weft {
namespace {

using namespace std::chrono_literals;
using asio::awaitable;
using asio::use_awaitable;
using test::asio_tokens::as_tuple;

class asio_stream_base : public testing::Test {
 protected:
  asio::io_context io_;
  net::device device_ = net::device::open("iwarp");
  std::optional<asio_host> host_{io_};
};

class asio_stream_test : public asio_stream_base, public testing::WithParamInterface<const char*> {
 protected:
  struct ends {
    net::stream a;
    net::stream b;
  };
  awaitable<void> accept(net::stream_listener& listener, net::stream& into) {
    auto request = co_await host_->async(listener.next(), use_awaitable);
    into = co_await host_->async(request->accept(), use_awaitable);
  }
  awaitable<void> connect(ends& both) {
    using namespace asio::experimental::awaitable_operators;
    const std::string address = std::string(GetParam()) + "://127.0.0.1:0";
    auto listener = co_await host_->async(net::stream_listener::listen(device_, address), use_awaitable);
    const auto connecting = [&]() -> awaitable<void> {
      both.a = co_await host_->async(net::stream::connect(device_, std::string(listener->address())), use_awaitable);
    };
    co_await (accept(*listener, both.b) && connecting());
  }
};

INSTANTIATE_TEST_SUITE_P(over, asio_stream_test, testing::Values("iwarp", "tcp"),
                         [](const auto& item) { return std::string(item.param); });

TEST_P(asio_stream_test, async_read_until_and_async_write_do_not_know_the_difference) {
  test::run(io_, [&]() -> awaitable<void> {
    ends both;
    co_await connect(both);
    const std::array<asio::const_buffer, 2> parts{asio::buffer("first\nsec", 9), asio::buffer("ond\nrest", 8)};
    EXPECT_EQ(co_await asio::async_write(both.a, parts, use_awaitable), 17u);
    std::string words;
    EXPECT_EQ(co_await asio::async_read_until(both.b, asio::dynamic_buffer(words), '\n', use_awaitable), 6u);
    words.erase(0, 6);
    EXPECT_EQ(co_await asio::async_read_until(both.b, asio::dynamic_buffer(words), '\n', use_awaitable), 7u);
    words.erase(0, 7);
    co_await both.a.async_shutdown_send(use_awaitable);
    const auto [failure, count] =
        co_await asio::async_read(both.b, asio::dynamic_buffer(words), as_tuple(use_awaitable));
    EXPECT_EQ(failure, asio::error::eof);
    EXPECT_EQ(words, "rest");
  }());
}

TEST_P(asio_stream_test, bytes_are_exact_through_a_streambuf_and_back) {
  test::run(io_, [&]() -> awaitable<void> {
    using namespace asio::experimental::awaitable_operators;
    ends both;
    co_await connect(both);
    std::vector<unsigned char> sent(1'000'000);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i * 7 + i / 251);
    std::vector<unsigned char> got(sent.size());
    co_await (asio::async_write(both.a, asio::buffer(sent), use_awaitable) &&
              asio::async_read(both.b, asio::buffer(got), use_awaitable));
    EXPECT_EQ(got, sent);
  }());
}

TEST_P(asio_stream_test, the_slot_of_a_read_stops_it_at_every_step_and_no_byte_is_lost) {
  test::run(io_, [&]() -> awaitable<void> {
    ends both;
    co_await connect(both);
    std::string sent;
    std::string got;
    int stopped = 0;
    for (int steps = 0; steps < 40; ++steps) {
      asio::cancellation_signal signal;
      std::array<char, 50> room{};
      bool ended = false;
      both.b.async_read_some(
          asio::buffer(room),
          asio::bind_cancellation_slot(signal.slot(), [&](std::error_code failure, std::size_t count) {
            EXPECT_TRUE(!failure || failure == asio::error::operation_aborted);
            EXPECT_EQ(count != 0, !failure);
            if (failure) ++stopped;
            got.append(room.data(), count);
            ended = true;
          }));
      const std::string words = std::to_string(steps) + " ";
      if (steps % 4 != 0) {
        co_await asio::async_write(both.a, asio::buffer(words), use_awaitable);
        sent += words;
      }
      for (int i = 0; i < steps; ++i) co_await asio::post(io_, use_awaitable);
      signal.emit(asio::cancellation_type::total);
      while (!ended) co_await asio::post(io_, use_awaitable);
    }
    EXPECT_GT(stopped, 0);
    co_await both.a.async_shutdown_send(use_awaitable);
    co_await asio::async_read(both.b, asio::dynamic_buffer(got), as_tuple(use_awaitable));
    EXPECT_EQ(got, sent);
  }());
}

TEST_P(asio_stream_test, cancel_close_and_the_destructor_end_what_is_pending_with_operation_aborted) {
  test::run(io_, [&]() -> awaitable<void> {
    const std::vector<std::function<void(ends&)>> ways{
        [](ends& both) { both.a.cancel(); },
        [](ends& both) { both.a.close(); },
        [](ends& both) { both.a = net::stream(); },
    };
    for (const auto& way : ways) {
      ends both;
      co_await connect(both);
      asio::post(io_, [&] { way(both); });
      std::array<char, 50> room{};
      const auto [failure, count] = co_await both.a.async_read_some(asio::buffer(room), as_tuple(use_awaitable));
      EXPECT_EQ(failure, asio::error::operation_aborted);
      EXPECT_EQ(count, 0u);
    }
  }());
}

TEST_P(asio_stream_test, close_behind_what_was_written_although_the_peer_says_more_than_is_read) {
  test::run(io_, [&]() -> awaitable<void> {
    ends both;
    co_await connect(both);
    const std::vector<char> words(100'000);
    std::size_t sent = 0;
    for (bool ended = true; ended;) {  // until there is no room on the way
      asio::cancellation_signal signal;
      ended = false;
      const auto count = [&](std::error_code, std::size_t bytes) {
        sent += bytes;
        ended = true;
      };
      both.a.async_write_some(asio::buffer(words), asio::bind_cancellation_slot(signal.slot(), count));
      for (int i = 0; i < 20 && !ended; ++i) co_await asio::post(io_, use_awaitable);
      if (ended) continue;
      signal.emit(asio::cancellation_type::total);
      while (!std::exchange(ended, false)) co_await asio::post(io_, use_awaitable);
    }
    both.a.close();
    // Over messages the peer may know of the end by now.
    static_cast<void>(co_await asio::async_write(both.b, asio::buffer("x", 1), as_tuple(use_awaitable)));
    std::vector<char> room(100'000);
    std::size_t got = 0;
    for (std::error_code failure; !failure;) {
      std::size_t count = 0;
      std::tie(failure, count) = co_await both.b.async_read_some(asio::buffer(room), as_tuple(use_awaitable));
      got += count;
      EXPECT_TRUE(!failure || failure == asio::error::eof) << failure.message();
    }
    EXPECT_EQ(got, sent);
    both.b.close();
    co_await host_->async(both.a.close(), use_awaitable);
  }());
}

TEST_P(asio_stream_test, the_peers_end_is_eof_and_its_death_is_not) {
  test::run(io_, [&]() -> awaitable<void> {
    std::array<char, 50> room{};
    ends both;
    co_await connect(both);
    both.a.shutdown(asio::socket_base::shutdown_send);
    auto [failure, count] = co_await both.b.async_read_some(asio::buffer(room), as_tuple(use_awaitable));
    EXPECT_EQ(failure, asio::error::eof);
    both.b.close();
    std::tie(failure, count) = co_await both.a.async_read_some(asio::buffer(room), as_tuple(use_awaitable));
    EXPECT_EQ(failure, asio::error::eof);

    ends others;
    co_await connect(others);
    others.a.abort();
    std::tie(failure, count) = co_await others.b.async_read_some(asio::buffer(room), as_tuple(use_awaitable));
    EXPECT_TRUE(failure && failure != asio::error::eof) << failure.message();
  }());
}

TEST_P(asio_stream_test, the_host_goes_first_and_the_handlers_are_called) {
  ends both;
  std::error_code ended;
  std::array<char, 50> room{};
  test::run(io_, [&]() -> awaitable<void> {
    co_await connect(both);
    both.a.async_read_some(asio::buffer(room), [&](std::error_code failure, std::size_t) { ended = failure; });
    asio::post(io_, [&] {
      both = ends();
      host_.reset();
    });
  }());
  EXPECT_EQ(ended, asio::error::operation_aborted);
}

class asio_host_and_sockets_test : public asio_stream_base {};

// A peer that knows nothing of weft.
TEST_F(asio_host_and_sockets_test, plain_tcp_speaks_with_sockets_both_ways) {
  test::run(io_, [&]() -> awaitable<void> {
    asio::ip::tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    const std::string address = "tcp://127.0.0.1:" + std::to_string(acceptor.local_endpoint().port());
    auto ours = co_await host_->async(net::stream::connect(device_, address), use_awaitable);
    auto theirs = co_await acceptor.async_accept(use_awaitable);
    co_await asio::async_write(ours, asio::buffer("hello\n", 6), use_awaitable);
    std::string words;
    co_await asio::async_read_until(theirs, asio::dynamic_buffer(words), '\n', use_awaitable);
    EXPECT_EQ(words, "hello\n");
    co_await asio::async_write(theirs, asio::buffer("you\n", 4), use_awaitable);
    theirs.close();
    words.clear();
    const auto [failure, count] = co_await asio::async_read(ours, asio::dynamic_buffer(words), as_tuple(use_awaitable));
    EXPECT_EQ(failure, asio::error::eof);
    EXPECT_EQ(words, "you\n");
  }());
}

TEST_F(asio_host_and_sockets_test, a_stream_of_an_executor_of_its_own_is_none_of_asios) {
  executor own;
  own.run([&]() -> task<> {
    auto listener = co_await net::stream_listener::listen(device_, "tcp://127.0.0.1:0");
    auto stream = co_await net::stream::connect(device_, std::string(listener.address()));
    EXPECT_THROW(static_cast<void>(stream.get_executor()), error);
  }());
}

}  // namespace
}  // namespace weft
