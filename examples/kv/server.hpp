// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace kv {

struct serve_options {
  std::string listen_address = "127.0.0.1:7475";
  std::string tcp_address = "127.0.0.1";
  std::uint16_t tcp_port = 7476;
  std::size_t max_connections = 256;  ///< of clients over weft at a time, and as many over TCP
  /// Room for so many, with as much again to spare. Empty: a million, or fewer where the locked-memory limit is low.
  std::optional<std::uint64_t> keys;
  std::uint64_t fill = 0;  ///< so many keys to begin with: those of the benchmark
  /// Clients of this machine map the table, and read it without this process.
  bool direct = false;
  std::size_t threads = 1;  ///< on how many executors to serve weft clients; 1: on that of TCP
};

/// Serves until it fails. Says on the standard output where, once it does.
void serve(weft::net::device& device, const serve_options& options);

}  // namespace kv
