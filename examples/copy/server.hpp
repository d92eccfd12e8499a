// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/device.hpp>
#include <weft/net/listener.hpp>
#include <weft/runtime/task.hpp>

#include <chrono>
#include <string>

namespace copy {

struct serve_options {
  std::string directory;
  weft::duration patience{};
  std::chrono::milliseconds resume_within{};  ///< weft::net::connection_options::resume_within
  bool sync = false;
};

/// Takes and gives files until it is stopped, any number of clients at a time. One line for each transfer.
/// Throws copy::failure if there is no such directory.
[[nodiscard]] weft::task<> serve(weft::net::device& device, weft::net::listener& listener, serve_options options);

}  // namespace copy
