// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/io/epoll_driver.hpp>
#include <weft/runtime/io/io_uring_driver.hpp>

#include <cstdlib>

namespace weft {

std::string_view name_of(io_kind kind) noexcept {
  switch (kind) {
    case io_kind::accept:
      return "an accept";
    case io_kind::connect:
      return "a connect";
    case io_kind::receive:
      return "a receive";
    case io_kind::send:
      return "a send";
    case io_kind::readable:
      return "a wait for readiness";
    case io_kind::read:
      return "a read of a file";
    case io_kind::write:
      return "a write to a file";
    case io_kind::sync:
      return "a sync of a file";
  }
  return "an operation";
}

void io_operation::destroyed_in_progress() const noexcept {
  detail::terminate_because((std::string(name_of(kind)) + " was destroyed in progress").c_str());
}

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
