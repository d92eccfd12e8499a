// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cache_options.hpp>
#include <weft/runtime/error.hpp>

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

namespace weft::mr {
namespace {

std::size_t number_in(const char* variable, std::size_t otherwise) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return otherwise;
  const std::string_view all(text);
  std::size_t value = 0;
  const auto [end, failure] = std::from_chars(all.data(), all.data() + all.size(), value);
  if (failure == std::errc() && end == all.data() + all.size()) return value;
  throw error(errc::invalid_argument, std::string(variable) + "=" + text + " is not a number");
}

}  // namespace

cache_options cache_options::from_environment() {
  cache_options options;
  options.max_bytes = number_in("WEFT_CACHE_MAX_SIZE", options.max_bytes);
  options.max_regions = number_in("WEFT_CACHE_MAX_COUNT", options.max_regions);
  if (const char* const text = std::getenv("WEFT_CACHE_MONITOR")) {
    const std::string_view kind(text);
    if (kind == "userfaultfd") {
      options.monitor = cache_monitor::userfaultfd;
    } else if (kind == "disabled") {
      options.max_regions = 0;
    } else {
      throw error(errc::invalid_argument,
                  "WEFT_CACHE_MONITOR=" + std::string(kind) + " is neither userfaultfd nor disabled");
    }
  }
  return options;
}

}  // namespace weft::mr
