// SPDX-License-Identifier: Apache-2.0
// What an Asio program would start with: a coroutine of its own that awaits something of weft.
#include <weft/net/asio.hpp>
#include <weft/weft.hpp>

#include <asio.hpp>

#include <chrono>
#include <cstdio>
#include <exception>

int main() {
  asio::io_context io;
  weft::asio_host host(io);
  bool slept = false;
  const auto body = [&]() -> asio::awaitable<void> {
    co_await host.async(weft::sleep_for(std::chrono::milliseconds(1)), asio::use_awaitable);
    slept = true;
  };
  asio::co_spawn(io, body(), [](const std::exception_ptr& failure) {
    if (failure) std::rethrow_exception(failure);
  });
  io.run();
  std::puts(slept ? "slept" : "did not sleep");
  return slept ? 0 : 1;
}
