// SPDX-License-Identifier: Apache-2.0
#include <weft/net/stream/destination.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

namespace weft::net {

destination parse_destination(std::string_view address, std::string_view device) {
  const std::size_t end = address.find("://");
  if (end == std::string_view::npos) return {.plain = false, .where = address};
  const std::string_view scheme = address.substr(0, end);
  const std::string_view where = address.substr(end + 3);
  if (scheme == "tcp") return {.plain = true, .where = where};
  const std::string_view own = device.substr(0, device.find(':'));
  if (scheme == own) return {.plain = false, .where = where};
  throw error(errc::not_supported,
              fmt::format("\"{}\": this device speaks \"{}://\", and there is \"tcp://\"", address, own));
}

}  // namespace weft::net
