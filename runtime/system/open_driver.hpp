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
  automatic,  ///< what the environment variable WEFT_EVENT_DRIVER names, else io_uring, or epoll if that fails
  io_uring,
  epoll,
};

/// Opens a driver. Under `automatic`, unless WEFT_EVENT_DRIVER names a driver, epoll takes over if io_uring cannot be
/// opened, and `*why` then gives the reason. Throws weft::error if the driver that was asked for, or epoll in the place
/// of io_uring, cannot be opened, and under `automatic` errc::invalid_argument if WEFT_EVENT_DRIVER has another value.
[[nodiscard]] std::unique_ptr<event_driver> open_driver(driver_choice choice, system_calls& calls, std::string* why);

}  // namespace weft
