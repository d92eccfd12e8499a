// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstddef>
#include <optional>
#include <string>

#include <kv/table.hpp>

namespace kv {

struct resp_server_options {
  std::optional<std::string> tcp_address{};     ///< "HOST:PORT", for clients over TCP. Empty: none
  std::optional<std::string> valkey_address{};  ///< "HOST:PORT", for clients of Valkey over RDMA. Empty: none
  std::size_t max_connections = 256;            ///< of each kind at a time
};

/// Serves clients of Redis and Valkey on the calling executor, until it fails. Says on the standard output where, once
/// it does.
[[nodiscard]] weft::task<> serve_resp(weft::net::device& device, table& data, resp_server_options options);

}  // namespace kv
