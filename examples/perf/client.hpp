// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/device.hpp>
#include <weft/runtime/task.hpp>

#include <string>
#include <vector>

#include "test.hpp"

namespace perf {

struct run_options {
  std::string address;
  std::vector<test> tests;
  weft::poll_policy polling = weft::poll_policy::adaptive;  ///< of this executor, to tell
  bool json = false;                                        ///< instead of the table
  std::string plot;                                         ///< the file for a picture; empty: none
};

/// Runs the tests one after the other and reports them. Throws weft::error, or std::runtime_error for files.
[[nodiscard]] weft::task<> run_tests(weft::net::device& device, run_options options);

}  // namespace perf
