// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace weft {

class event_driver;
class system_calls;

/// The driver that an executor is to use.
enum class driver_choice : std::uint8_t {
  automatic,  ///< the one that the environment variable WEFT_EVENT_DRIVER names, else io_uring, else epoll
  io_uring,
  epoll,
};

/// Opens a driver. Under `automatic`, epoll takes over if io_uring is forbidden or too old, and `*why` then gives the
/// reason. Throws weft::error, also if a driver that was asked for by name cannot be opened.
[[nodiscard]] std::unique_ptr<event_driver> open_driver(driver_choice choice, system_calls& calls, std::string* why);

}  // namespace weft
