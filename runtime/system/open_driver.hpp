// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace weft {

class event_driver;
class system_calls;

/// Which driver an executor shall use.
enum class driver_choice : std::uint8_t {
  automatic,  ///< what the environment variable WEFT_EVENT_DRIVER names, else io_uring, else epoll
  io_uring,
  epoll,
};

/// Opens a driver. Under `automatic`, epoll takes over where io_uring is forbidden or too old, and `*why` then says so.
/// Throws weft::error, also where a driver was asked for by name and cannot be had.
[[nodiscard]] std::unique_ptr<event_driver> open_driver(driver_choice choice, system_calls& calls, std::string* why);

}  // namespace weft
