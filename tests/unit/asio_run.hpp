// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/asio.hpp>

#include <asio.hpp>

#include <exception>
#include <utility>

namespace weft::test {

/// Runs an Asio coroutine to its end, and everything else with it.
inline void run(asio::io_context& io, asio::awaitable<void> body) {
  std::exception_ptr failure;
  asio::co_spawn(io, std::move(body), [&](std::exception_ptr what) { failure = std::move(what); });
  io.restart();
  io.run();
  if (failure) std::rethrow_exception(failure);
}

/// The same of a task that Asio's io_context serves.
inline void run(asio_host& host, asio::io_context& io, task<> body) {
  std::exception_ptr failure;
  host.spawn(std::move(body), [&](std::exception_ptr what) { failure = std::move(what); });
  io.restart();
  io.run();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace weft::test
