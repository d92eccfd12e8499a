// SPDX-License-Identifier: Apache-2.0
// What fragments for programs of Asio find declared.
#pragma once

#include <weft/net/asio.hpp>
#include <weft/runtime/asio.hpp>

#include <asio.hpp>
#include <asio/experimental/as_tuple.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/ssl.hpp>

#include "surroundings.hpp"

namespace surroundings_asio {

using namespace surroundings_plain;
using namespace asio::experimental::awaitable_operators;
using asio::use_awaitable;
using asio::experimental::as_tuple;

extern asio_host host;
extern asio::steady_timer timer;
extern asio::ip::tcp::socket socket;
extern asio::ssl::context context;
extern std::string request, answer;
extern std::array<std::byte, 4096> bytes;
extern std::size_t turn;

extern std::unique_ptr<net::listener> listener;
template <class Request>
asio::awaitable<void> greet(asio_host&, Request);
void report(std::exception_ptr);
void log(const char*);

}  // namespace surroundings_asio
