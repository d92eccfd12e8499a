// SPDX-License-Identifier: Apache-2.0
// sharing_owner SOCKET direct|closed|failing: a process with memory of a GPU, which a test writes and reads over shared
// memory, and asks about.
#include <weft/weft.hpp>

#include <cstdio>

#include "sharing.hpp"
#include "stand_in_control.hpp"

namespace {

using namespace weft;

bool holds(const test::stand_in& driver, std::span<const std::byte> memory, unsigned seed) {
  std::vector<std::byte> expected(memory.size());
  test::fill_with(expected, seed);
  return driver.peek(memory) == expected;
}

// Nothing if the test has gone, in whatever way.
task<std::optional<net::message>> next_of(net::connection& peer) {
  try {
    co_return co_await peer.recv();
  } catch (const error&) {
  }
  co_return std::nullopt;
}

task<> serve(net::device& device, std::string address, std::string how, test::stand_in& driver) {
  const auto gpu = mr::open_cuda({.library = test::stand_in::library()});
  mr::device_memory memory = gpu->allocate(test::shared_bytes);
  const mr::region region = co_await device.domain().register_memory(
      std::move(memory),
      {.usage = mr::usage::write_dst | mr::usage::read_src, .device = gpu.get(), .direct = how != "closed"});
  net::listener listener = co_await device.listen(address);
  std::puts("ready");
  std::fflush(stdout);
  auto request = co_await listener.next();
  if (!request) co_return;
  net::connection peer = co_await request->accept({.device_memory = true});
  const auto descriptor = region.remote().pack();
  mr::buffer told = co_await device.allocate(descriptor.size());
  std::memcpy(told.data(), descriptor.data(), descriptor.size());
  co_await peer.send(std::move(told));
  if (how == "failing") driver.fail_next("cuIpcOpenMemHandle_v2", 1);
  std::uint32_t immediate = 0;
  while (auto message = co_await next_of(peer)) {
    if (message->immediate) {
      immediate = *message->immediate;
      continue;
    }
    const auto seed = std::to_integer<unsigned>(message->bytes()[0]);
    const test::stand_in_counts counts = driver.counts();
    const test::sharing_state now{.holds = holds(driver, region.bytes(), seed),
                                  .tried_to_open = how == "failing" && driver.has_failed(),
                                  .pinned = counts.pinned,
                                  .open = counts.opened,
                                  .immediate = immediate};
    mr::buffer answer = co_await device.allocate(sizeof now);
    std::memcpy(answer.data(), &now, sizeof now);
    co_await peer.send(std::move(answer));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    test::stand_in driver;
    auto device = net::device::open("shm");
    executor home;
    home.run(serve(device, argv[1], argv[2], driver));
    return 0;
  } catch (const std::exception& why) {
    std::fprintf(stderr, "sharing_owner: %s\n", why.what());
    return 1;
  }
}
