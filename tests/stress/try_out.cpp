// SPDX-License-Identifier: Apache-2.0
#include "try_out.hpp"

#include <weft/weft.hpp>

#include <fmt/core.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "kit/standard.hpp"

namespace weft::stress {
namespace {

void try_out(const battleground& where) {
  if (!where.client_device.empty()) static_cast<void>(net::device::open(where.client_device));
  auto device = net::device::open(where.device);
  if (!where.far_host.empty()) return;  // the address is for that one to try
  executor running;
  const std::string at_any_port = where.address + ":0";
  const auto listen = [&]() -> task<> { static_cast<void>(co_await device.listen(at_any_port)); };
  running.run(listen());
}

}  // namespace

// In a process of its own: this one has to go on without threads, and without a device.
bool can_be_used(const battleground& where) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child < 0) throw system_error(errno, "fork(2)");
  if (child == 0) {
    try {
      try_out(where);
    } catch (const std::exception& why) {
      fmt::print(stderr, "weft-stress: {}\n", why.what());
      std::exit(2);
    }
    std::exit(0);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0;
}

}  // namespace weft::stress
