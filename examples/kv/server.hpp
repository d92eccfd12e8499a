// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace kv {

struct serve_options {
  std::string listen_address = "127.0.0.1:7475";
  std::string tcp_address = "127.0.0.1";
  std::uint16_t tcp_port = 7476;
  std::optional<std::uint16_t> resp_port;     ///< for Redis's and Valkey's clients over TCP; 0: any. Empty: none
  std::optional<std::string> valkey_address;  ///< for Valkey's clients over RDMA. Empty: none
  std::size_t max_connections = 256;          ///< of each kind of clients at a time
  /// Room for so many, with as much again to spare. Empty: a million, or fewer where the locked-memory limit is low.
  std::optional<std::uint64_t> keys;
  /// Bytes for keys and values that do not fit a slot. Empty: 256 MiB, or less where the locked-memory limit is low.
  std::optional<std::uint64_t> record_memory;
  std::uint64_t fill = 0;        ///< so many keys to begin with: those of the benchmark
  std::size_t value_bytes = 64;  ///< of their values
  /// Clients of this machine map the table, and read it without this process.
  bool direct = false;
  std::size_t threads = 1;                     ///< on how many executors to serve weft clients; 1: on that of TCP
  std::optional<std::string> metrics_address;  ///< "HOST:PORT", for Prometheus. Empty: none
  std::chrono::milliseconds resume_within{};   ///< a client's connection waits so long for the network to come back
  std::string trace;                           ///< the file in which SIGUSR2 records ten seconds. Empty: none
  std::chrono::milliseconds stall_limit{};     ///< turns that take longer are reported; zero: none
};

/// Serves until it fails. Says on the standard output where, once it does. SIGUSR1 has all tasks written to the
/// standard error stream.
void serve(weft::net::device& device, const serve_options& options);

}  // namespace kv
