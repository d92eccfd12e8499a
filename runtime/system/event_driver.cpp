// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/event_driver.hpp>

#include <array>
#include <cstddef>
#include <string>

namespace weft {

std::string_view name_of(io_kind kind) noexcept {
  static constexpr std::array<std::string_view, 8> names{"an accept",         "a receive",       "a wait for readiness",
                                                         "a connect",         "a send",          "a read of a file",
                                                         "a write to a file", "a sync of a file"};
  static_assert(names.size() == static_cast<std::size_t>(io_kind::sync) + 1);
  return names[static_cast<std::size_t>(kind)];
}

void io_operation::destroyed_in_progress() const noexcept {
  detail::terminate_because((std::string(name_of(kind)) + " was destroyed in progress").c_str());
}

}  // namespace weft
