// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/remote_region.hpp>
#include <weft/mr/usage.hpp>
#include <weft/net/connection.hpp>
#include <weft/runtime/task.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "meter.hpp"
#include "protocol.hpp"

namespace perf {

/// One connection of a test, with our memory: one buffer, or one for each operation in flight.
struct lane {
  explicit lane(weft::net::connection to) noexcept : peer(std::move(to)) {}

  weft::net::connection peer;
  std::vector<weft::mr::buffer> memory;
  std::optional<weft::net::prepared_memory> target;  ///< the server's memory, of the test's size
};

/// Repeats an operation on a lane, until the meter says that it is enough.
using loop = weft::task<> (*)(lane& on, weft::mr::buffer& memory, meter& counts);

/// How to measure one quantity of an operation.
struct procedure {
  role server = role::wait;
  unsigned trips = 1;        ///< that one round makes: the time that is given is that of one
  std::string_view meaning;  ///< of the time that is given
  loop run = nullptr;
};

enum class quantity : std::uint8_t { latency, bandwidth };

/// What can be measured. To add an operation is to add a row to the table in operations.cpp.
struct operation {
  std::string_view name;
  weft::mr::usage access = weft::mr::usage::none;  ///< what the server opens its memory for
  std::uint32_t fixed_size = 0;                    ///< 0: it comes in all sizes
  bool fills_memory = false;                       ///< so that each of those in flight needs memory of its own
  procedure latency;                               ///< one operation at a time
  procedure bandwidth;                             ///< as many as the depth says

  [[nodiscard]] const procedure& how(quantity measures) const noexcept {
    return measures == quantity::latency ? latency : bandwidth;
  }
};

[[nodiscard]] std::span<const operation> all_operations() noexcept;

/// Null if there is none of that name.
[[nodiscard]] const operation* find_operation(std::string_view name) noexcept;

}  // namespace perf
