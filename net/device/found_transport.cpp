// SPDX-License-Identifier: Apache-2.0
#include <weft/net/device/found_transport.hpp>
#include <weft/net/iwarp/transport.hpp>
#include <weft/runtime/error.hpp>

namespace weft::net {

found_transport find_transport(const std::function<std::unique_ptr<transport>()>& open_rdma) {
  found_transport best;
  try {
    best.made = open_rdma();
  } catch (const error& why) {
    if (why.code() != errc::not_supported) throw;
    best.passed_over = why.what();
  }
  if (best.made == nullptr) best.made = iwarp::open_transport();
  return best;
}

}  // namespace weft::net
