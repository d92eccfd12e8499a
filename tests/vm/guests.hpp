// SPDX-License-Identifier: Apache-2.0
// What programs share that run in both of two guests: tests/vm/README.md.
#pragma once

#include <weft/weft.hpp>

#include <cstdio>
#include <cstdlib>

#include "kit/standard.hpp"

namespace weft::test {

/// 1 or 2.
inline int guest_number() {
  const char* number = std::getenv("WEFT_VM_GUEST");
  if (number == nullptr) throw std::runtime_error("this is not one of two guests");
  return std::stoi(number);
}

/// Where guest 1 listens.
inline constexpr const char* first_guest = "10.78.0.1:7471";

/// Runs it as sh(1) does, on a worker: it may stop or kill this process, $PPID.
inline task<> shell(const char* command) {
  const auto work = [command] { return std::system(command); };
  const int status = co_await offload(work);
  if (status != 0) throw std::runtime_error("\"" + std::string(command) + "\" ended with " + std::to_string(status));
}

/// No memory of the pool's is in use any more, and nobody waits for any.
inline void expect_nothing_left(net::device& device) {
  const mr::pool_statistics left = device.pool().statistics();
  for (const mr::budget share : {mr::budget::send, mr::budget::receive}) {
    if (left.of(share).in_use_bytes != 0) throw std::runtime_error("memory of the pool's is still in use");
    if (left.of(share).waiting != 0) throw std::runtime_error("somebody waits for memory still");
  }
}

/// Runs the part of this guest, the first one's or the second one's, and returns what the program shall exit with.
template <class First, class Second>
int play(const char* program, const std::string& device_name, const First& first, const Second& second) {
  try {
    auto device = net::device::open(device_name);
    {
      executor ex;
      ex.run(guest_number() == 1 ? first(device) : second(device));
    }
    expect_nothing_left(device);
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s: %s\n", program, failure.what());
    return 1;
  }
}

}  // namespace weft::test
