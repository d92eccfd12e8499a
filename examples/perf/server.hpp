// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/device.hpp>
#include <weft/net/listener.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/task.hpp>

#include "protocol.hpp"

namespace perf {

struct serve_options {
  std::chrono::milliseconds resume_within{};                ///< weft::net::connection_options::resume_within
  weft::poll_policy polling = weft::poll_policy::adaptive;  ///< of this executor, to tell the clients
  checking checksum = checking::off;                        ///< with which the device was opened
  bool direct = false;                                      ///< clients of this machine may map their memory
  bool quiet = false;                                       ///< no line for each test
};

/// The other end of everybody's measurements until it is stopped, any number of clients at a time.
[[nodiscard]] weft::task<> serve(weft::net::device& device, weft::net::listener& listener, serve_options options);

}  // namespace perf
