// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include <nvme/controller.hpp>

namespace nvme {

struct serve_options {
  std::vector<std::string> files;
  std::vector<std::uint64_t> memory;  ///< bytes of each namespace in memory
  std::string listen_address = "127.0.0.1:4420";
  std::string nqn = "nqn.2024-01.org.example:disk";
  std::vector<std::string> allowed_hosts;
  bool read_only = false;  ///< the files
  std::uint32_t block_bytes = 512;
  std::string advertised;
  limits most{};
};

/// Serves until SIGINT or SIGTERM, and then lets commands under way end; at a second one it ends them. SIGHUP has it
/// look again how large the files are. Says on the standard output where it serves, once it does, and who comes.
/// `signals` are those three. Throws std::invalid_argument for options that make no sense, and weft::error.
[[nodiscard]] weft::task<> serve(weft::net::device& device, const serve_options& options, weft::signal_set& signals);

}  // namespace nvme
