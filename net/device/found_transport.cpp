// SPDX-License-Identifier: Apache-2.0
#include <weft/net/device/found_transport.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

namespace weft::net {

found_transport find_transport(const std::function<std::unique_ptr<transport>()>& open_rdma,
                               const std::function<std::unique_ptr<transport>()>& open_iwarp) {
  found_transport best;
  try {
    best.made = open_rdma();
  } catch (const error& why) {
    if (why.code() != errc::not_supported) throw;
    best.passed_over = why.what();
  }
  if (best.made == nullptr) best.made = open_iwarp();
  if (best.made == nullptr) {
    throw error(errc::not_supported,
                fmt::format("{}, and this build has no iwarp (the CMake option WEFT_WITH_IWARP)",
                            best.passed_over.empty() ? "this machine has no RDMA device" : best.passed_over));
  }
  return best;
}

}  // namespace weft::net
