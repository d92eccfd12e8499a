// SPDX-License-Identifier: Apache-2.0
#include <weft/net/device/transports.hpp>
#include <weft/net/fabrics.hpp>
#include <weft/runtime/error.hpp>
#ifdef WEFT_WITH_VERBS
#include <weft/net/verbs/description.hpp>
#endif
#ifdef WEFT_WITH_FABRIC
#include <weft/net/fabric/transport.hpp>
#endif

#include <iterator>
#include <string_view>

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
  return {try_fabric("verbs")};  // the entry says that this build has no verbs
#endif
}

// Lists libfabric's fabrics as device::open() names them; without libfabric or a provider, one entry has the reason.
std::vector<fabric_info> libfabric_fabrics() {
  std::vector<fabric_info> all;
#ifdef WEFT_WITH_FABRIC
  try {
    for (const std::string& provider : fabric::list_providers()) all.push_back(try_fabric("fabric:" + provider));
  } catch (const error&) {  // the entry below has the reason
  }
#endif
  if (all.empty()) all.push_back(try_fabric("fabric"));
  return all;
}

void append(std::vector<fabric_info>& all, std::vector<fabric_info> more) {
  all.insert(all.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

}  // namespace

std::vector<fabric_info> list_fabrics() {
  std::vector<fabric_info> all{try_fabric("shm")};
  append(all, rdma_fabrics());
  append(all, libfabric_fabrics());
  all.push_back(try_fabric("iwarp"));
  return all;
}

}  // namespace weft::net
