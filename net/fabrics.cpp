// SPDX-License-Identifier: Apache-2.0
#include <weft/net/device/transports.hpp>
#include <weft/net/fabrics.hpp>
#include <weft/runtime/error.hpp>
#ifdef WEFT_WITH_VERBS
#include <weft/net/verbs/description.hpp>
#endif

#include <iterator>
#include <string_view>
#include <utility>

namespace weft::net {
namespace {

fabric_info try_fabric(std::string_view name) {
  fabric_info found{.name = std::string(name)};
  try {
    static_cast<void>(open_transports(name, device_options()));
  } catch (const error& why) {
    found.why_not = why.what();
  }
  return found;
}

std::vector<fabric_info> rdma_fabrics() {
#ifdef WEFT_WITH_VERBS
  return verbs::describe_devices(verbs::rdma_calls::libraries());
#else
  return {try_fabric("verbs")};  // says that this build has none
#endif
}

}  // namespace

std::vector<fabric_info> list_fabrics() {
  std::vector<fabric_info> all{try_fabric("shm")};
  std::vector<fabric_info> devices = rdma_fabrics();
  all.insert(all.end(), std::make_move_iterator(devices.begin()), std::make_move_iterator(devices.end()));
  all.push_back(try_fabric("iwarp"));
  return all;
}

}  // namespace weft::net
