// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/epoll_driver.hpp>
#include <weft/runtime/system/io_uring_driver.hpp>
#include <weft/runtime/system/open_driver.hpp>

#include <cstdlib>
#include <string_view>

namespace weft {
namespace {

driver_choice chosen_by_environment() {
  const char* const variable = std::getenv("WEFT_EVENT_DRIVER");
  if (variable == nullptr || *variable == '\0') return driver_choice::automatic;
  const std::string_view name = variable;
  if (name == "io_uring") return driver_choice::io_uring;
  if (name == "epoll") return driver_choice::epoll;
  throw error(errc::invalid_argument, "WEFT_EVENT_DRIVER is \"" + std::string(name) + "\", not io_uring or epoll");
}

}  // namespace

std::unique_ptr<event_driver> open_driver(driver_choice choice, system_calls& calls, std::string* why) {
  if (choice == driver_choice::automatic) choice = chosen_by_environment();
  if (choice == driver_choice::epoll) return std::make_unique<epoll_driver>(calls);
  if (choice == driver_choice::io_uring) return std::make_unique<io_uring_driver>(calls);
  try {
    return std::make_unique<io_uring_driver>(calls);
  } catch (const error& failure) {
    *why = failure.what();
  }
  return std::make_unique<epoll_driver>(calls);
}

}  // namespace weft
