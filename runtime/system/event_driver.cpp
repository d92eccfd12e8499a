// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/event_driver.hpp>

#include <string>

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

}  // namespace weft
