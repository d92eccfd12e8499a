// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/asio.hpp>

#include <asio.hpp>
#include <asio/experimental/as_tuple.hpp>
#include <asio/experimental/deferred.hpp>

#include "kit/standard.hpp"

namespace weft::test {

/// What has left Asio's experiments since: as_tuple, deferred.
namespace asio_tokens {
using namespace asio;
using namespace asio::experimental;
}  // namespace asio_tokens

/// Runs what `start(handler)` begins to its end, and everything else with it.
template <class Start>
void run_until_over(asio::io_context& io, Start start) {
  std::exception_ptr failure;
  start([&](std::exception_ptr what) { failure = std::move(what); });
  io.restart();
  io.run();
  if (failure) std::rethrow_exception(failure);
}
/// An Asio coroutine.
inline void run(asio::io_context& io, asio::awaitable<void> body) {
  run_until_over(io, [&](auto handler) { asio::co_spawn(io, std::move(body), handler); });
}
/// A task that Asio's io_context serves.
inline void run(asio_host& host, asio::io_context& io, task<> body) {
  run_until_over(io, [&](auto handler) { host.spawn(std::move(body), handler); });
}

}  // namespace weft::test
