// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/device.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace copy {

struct put_options {
  std::vector<std::string> files;
  std::string address;
  weft::duration patience{};
  std::chrono::milliseconds resume_within{};  ///< weft::net::connection_options::resume_within
};

/// Puts files on a server, one after the other over one connection, and yields how many could not be: each of those has
/// its line on the standard error stream. Throws weft::error when the connection is over.
[[nodiscard]] weft::task<std::size_t> put(weft::net::device& device, put_options options);

struct get_options {
  std::string name;
  std::string address;
  std::string output;  ///< where to; empty: under the same name here
  weft::duration patience{};
  std::chrono::milliseconds resume_within{};  ///< weft::net::connection_options::resume_within
  bool sync = false;
};

/// Gets one file from a server. Throws copy::failure or weft::error.
[[nodiscard]] weft::task<> get(weft::net::device& device, get_options options);

}  // namespace copy
