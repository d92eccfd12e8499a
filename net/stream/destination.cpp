// SPDX-License-Identifier: Apache-2.0
#include <weft/net/stream/destination.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace weft::net {
namespace {

// The schemes of a device's fabrics and rails, once each: "verbs" and "iwarp" for "verbs:mlx5_0+verbs:mlx5_1,iwarp".
std::vector<std::string_view> schemes_of(std::string_view names) {
  std::vector<std::string_view> all;
  for (;;) {
    const std::size_t end = names.find_first_of(",+");
    const std::string_view name = names.substr(0, end);
    const std::string_view scheme = name.substr(0, name.find(':'));
    if (std::find(all.begin(), all.end(), scheme) == all.end()) all.push_back(scheme);
    if (end == std::string_view::npos) return all;
    names.remove_prefix(end + 1);
  }
}

}  // namespace

destination parse_destination(std::string_view address, std::string_view device) {
  const std::size_t end = address.find("://");
  if (end == std::string_view::npos) return {.plain = false, .where = address};
  const std::string_view scheme = address.substr(0, end);
  const std::string_view where = address.substr(end + 3);
  if (scheme == "tcp") return {.plain = true, .where = where};
  const std::vector<std::string_view> own = schemes_of(device);
  if (std::find(own.begin(), own.end(), scheme) != own.end()) return {.plain = false, .where = where};
  throw error(errc::not_supported,
              fmt::format("\"{}\": unknown scheme; use \"{}://\" or \"tcp://\"", address, fmt::join(own, "://\", \"")));
}

}  // namespace weft::net
