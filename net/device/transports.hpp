// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/device/found_transport.hpp>
#include <weft/net/transport.hpp>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace weft::net {

/// One way to reach peers that this build has: what stands before the colon of a device's name.
struct transport_kind {
  std::string_view name;
  std::string_view spellings;  ///< of what device::open() takes, for errors: "verbs, verbs:NAME, verbs:ADDRESS"
  bool takes_name;             ///< whether something may follow the colon
  bool is_rdma;                ///< whether "auto" prefers it
  bool (*is_there)();
  /// With what follows the colon, or nothing: the first that is ready. Throws weft::error.
  std::unique_ptr<transport> (*open)(std::string_view name);
};

/// Those that were not left out at configure time.
[[nodiscard]] std::span<const transport_kind> transport_kinds() noexcept;

/// What "auto" finds, or the transports of a list of names: "verbs:mlx5_0,iwarp". Throws weft::error.
[[nodiscard]] std::vector<found_transport> open_transports(std::string_view names);

}  // namespace weft::net
