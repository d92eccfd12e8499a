// SPDX-License-Identifier: Apache-2.0
// A program for any stream of Asio's, written by its documentation alone: the word weft does not occur below.
#pragma once

#if WEFT_BOOST_ASIO
#include <boost/asio.hpp>
#include <boost/asio/experimental/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ssl.hpp>
namespace asio = boost::asio;
using boost::system::error_code;
using boost::system::system_error;
#else
#include <asio.hpp>
#include <asio/experimental/as_tuple.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/ssl.hpp>
using asio::error_code;
using asio::system_error;
#endif

#include "kit/standard.hpp"

namespace program {

using asio::awaitable;
using asio::use_awaitable;
using namespace asio::experimental::awaitable_operators;
namespace tokens {  // newer Asio has as_tuple among its own names
using namespace asio;
using namespace asio::experimental;
}  // namespace tokens
using tokens::as_tuple;
using namespace std::chrono_literals;

inline void require(bool condition, const char* promise) {
  if (!condition) throw std::runtime_error(promise);
}

// ---- lines ----

/// Answers each line with its letters in reverse, until the peer has no more; a peer that is silent for `patience` is
/// told so. Yields how many lines there were.
template <class Stream>
awaitable<int> answer_lines(Stream& peer, std::chrono::steady_clock::duration patience) {
  std::string pending;
  asio::steady_timer idle(peer.get_executor());
  for (int lines = 0;; ++lines) {
    idle.expires_after(patience);
    auto first = co_await (asio::async_read_until(peer, asio::dynamic_buffer(pending), '\n', as_tuple(use_awaitable)) ||
                           idle.async_wait(as_tuple(use_awaitable)));
    if (first.index() == 1) {
      co_await asio::async_write(peer, asio::buffer("bored\n", 6), use_awaitable);
      co_return lines;
    }
    const auto [failure, size] = std::get<0>(first);
    if (failure == asio::error::eof) co_return lines;
    if (failure) throw system_error(failure);
    std::string line = pending.substr(0, size - 1);
    pending.erase(0, size);
    std::reverse(line.begin(), line.end());
    const std::array<asio::const_buffer, 2> answer{asio::buffer(line), asio::buffer("\n", 1)};
    co_await asio::async_write(peer, answer, use_awaitable);
  }
}

template <class Stream>
awaitable<void> ask_lines(Stream& server) {
  asio::streambuf answers;
  for (int i = 0; i < 50; ++i) {
    std::string line(static_cast<std::size_t>(i * i * 13 % 20'000), static_cast<char>('a' + i % 26));
    line += std::to_string(i);
    co_await asio::async_write(server, asio::buffer(line + "\n"), asio::transfer_all(), use_awaitable);
    co_await asio::async_read_until(server, answers, "\n", use_awaitable);
    std::istream words(&answers);
    std::string answer;
    std::getline(words, answer);
    std::reverse(answer.begin(), answer.end());
    require(answer == line, "a line comes back in reverse");
  }
}

// ---- large ----

template <class Stream>
awaitable<void> exchange_much(Stream& a, Stream& b) {
  std::vector<unsigned char> there(3'000'000);
  std::vector<unsigned char> back(2'000'000);
  for (std::size_t i = 0; i < there.size(); ++i) there[i] = static_cast<unsigned char>(i * 31 + i / 257);
  for (std::size_t i = 0; i < back.size(); ++i) back[i] = static_cast<unsigned char>(i * 17 + i / 263);
  std::vector<unsigned char> got_there(there.size());
  std::vector<unsigned char> got_back(back.size());
  co_await (asio::async_write(a, asio::buffer(there), use_awaitable) &&
            asio::async_write(b, asio::buffer(back), use_awaitable) &&
            asio::async_read(b, asio::buffer(got_there), use_awaitable) &&
            asio::async_read(a, asio::buffer(got_back), use_awaitable));
  require(got_there == there && got_back == back, "every byte arrives, in order, both ways at once");
}

// ---- stops ----

/// Reads that lose against timers of every length: what they had not read comes to the next.
template <class Stream>
awaitable<void> stop_reads(Stream& from, Stream& to) {
  std::string sent;
  std::string got;
  std::array<char, 64> room{};
  asio::steady_timer timer(from.get_executor());
  int lost_against_the_timer = 0;
  for (int round = 0; round < 300; ++round) {
    const std::string words = std::to_string(round) + " ";
    if (round % 3 != 0) {
      co_await asio::async_write(from, asio::buffer(words), use_awaitable);
      sent += words;
    }
    timer.expires_after(std::chrono::microseconds(round % 100));
    // Both may have come to their end: then the read's count must not get lost.
    std::size_t count = 0;
    const auto read = [&]() -> awaitable<void> {
      const auto [failure, bytes] = co_await to.async_read_some(asio::buffer(room), as_tuple(use_awaitable));
      require(!failure || failure == asio::error::operation_aborted, "a stopped read says that it was");
      require(!failure || bytes == 0, "and has read nothing");
      count = bytes;
    };
    const auto first = co_await (read() || timer.async_wait(as_tuple(use_awaitable)));
    if (first.index() == 1) ++lost_against_the_timer;
    got.append(room.data(), count);
  }
  require(lost_against_the_timer > 0, "some reads were stopped");
  std::string rest(sent.size() - got.size(), '\0');
  co_await asio::async_read(to, asio::buffer(rest), use_awaitable);
  require(got + rest == sent, "no byte is lost to a stop");
}

// ---- TLS ----

template <class Stream>
awaitable<void> speak_tls(Stream a, Stream b, asio::ssl::context& client_side, asio::ssl::context& server_side) {
  asio::ssl::stream<Stream> client(std::move(a), client_side);
  asio::ssl::stream<Stream> server(std::move(b), server_side);
  co_await (client.async_handshake(asio::ssl::stream_base::client, use_awaitable) &&
            server.async_handshake(asio::ssl::stream_base::server, use_awaitable));
  const auto ask = [&]() -> awaitable<void> {
    co_await ask_lines(client);
    co_await client.async_shutdown(use_awaitable);
  };
  const auto answer = [&]() -> awaitable<void> {
    require(co_await answer_lines(server, 1h) == 50, "all lines come before the end of the session");
    co_await server.async_shutdown(as_tuple(use_awaitable));
  };
  co_await (ask() && answer());
  client.lowest_layer().close();
}

template <class Stream>
awaitable<void> refuse_strangers(Stream a, Stream b, asio::ssl::context& distrustful, asio::ssl::context& server_side) {
  asio::ssl::stream<Stream> client(std::move(a), distrustful);
  asio::ssl::stream<Stream> server(std::move(b), server_side);
  const auto refuse = [&]() -> awaitable<void> {
    const auto [failure] = co_await client.async_handshake(asio::ssl::stream_base::client, as_tuple(use_awaitable));
    require(static_cast<bool>(failure), "a certificate that nobody vouches for is refused");
    client.lowest_layer().close();
  };
  const auto serve = [&]() -> awaitable<void> {
    std::array<char, 10> room{};
    auto [failure] = co_await server.async_handshake(asio::ssl::stream_base::server, as_tuple(use_awaitable));
    std::size_t count = 0;
    if (!failure)
      std::tie(failure, count) = co_await server.async_read_some(asio::buffer(room), as_tuple(use_awaitable));
    require(static_cast<bool>(failure), "and the server hears of that");
  };
  co_await (refuse() && serve());
}

// ---- ends ----

template <class Stream>
awaitable<void> half_close(Stream& a, Stream& b) {
  co_await asio::async_write(a, asio::buffer("last", 4), use_awaitable);
  error_code failure;
  a.shutdown(asio::socket_base::shutdown_send, failure);
  require(!failure, "one direction can be shut down");
  std::string words;
  const auto [end, count] = co_await asio::async_read(b, asio::dynamic_buffer(words), as_tuple(use_awaitable));
  require(end == asio::error::eof && words == "last", "the end comes behind all bytes");
  co_await asio::async_write(b, asio::buffer("answer", 6), use_awaitable);
  b.close();
  words.clear();
  const auto [other_end, more] = co_await asio::async_read(a, asio::dynamic_buffer(words), as_tuple(use_awaitable));
  require(other_end == asio::error::eof && words == "answer", "the other direction is still open");
}

/// Callbacks instead of coroutines: all of them are called, once, whatever becomes of the stream.
template <class Stream>
awaitable<void> close_with_handlers_waiting(Stream a, Stream b) {
  int called = 0;
  std::array<char, 10> room{};
  const auto aborted = [&called](error_code failure, std::size_t) {
    require(failure == asio::error::operation_aborted, "what waits for a closed stream is aborted");
    ++called;
  };
  a.async_read_some(asio::buffer(room), aborted);
  const auto home = a.get_executor();
  co_await asio::post(home, use_awaitable);
  a.close();
  while (called != 1) co_await asio::post(home, use_awaitable);
  b.async_read_some(asio::buffer(room), [&](error_code failure, std::size_t) {
    require(failure == asio::error::eof, "and the peer reads the end");
    ++called;
  });
  while (called != 2) co_await asio::post(home, use_awaitable);
  { const Stream gone = std::move(b); }
  co_await asio::post(home, use_awaitable);
  require(called == 2, "no handler is called twice");
}

}  // namespace program
