// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/asio/one_library.hpp>
#include <weft/runtime/error.hpp>

#include <atomic>
#include <cstring>

namespace weft::detail {

void require_one_asio(const char* name) noexcept {
  static std::atomic<const char*> first{nullptr};
  const char* before = nullptr;
  if (first.compare_exchange_strong(before, name) || std::strcmp(before, name) == 0) return;
  terminate_because(
      "parts of this program use weft with Asio and others with Boost.Asio: define WEFT_BOOST_ASIO as 0 "
      "or 1 for all of it");
}

}  // namespace weft::detail
