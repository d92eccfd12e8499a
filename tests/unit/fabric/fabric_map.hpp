// SPDX-License-Identifier: Apache-2.0
// Which endpoints a test's provider has, and whom they know.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <map>
#include <set>

#include "kit/standard.hpp"

namespace weft::test {

/// Endpoints with their queues and addresses, and what address vectors hold. The owner guards it with a mutex.
class fabric_map {
 public:
  void bind(fid_ep* endpoint, fid* to) {
    member& item = endpoints_[endpoint];
    if (to->fclass == FI_CLASS_CQ) item.queue = reinterpret_cast<fid_cq*>(to);
    if (to->fclass == FI_CLASS_AV) item.vector = reinterpret_cast<fid_av*>(to);
  }
  void name(fid* endpoint, const void* address, std::size_t length) {
    address_bytes_ = length;
    endpoints_[reinterpret_cast<fid_ep*>(endpoint)].address.assign(static_cast<const char*>(address), length);
  }
  void insert(fid_av* vector, const void* address, fi_addr_t place) {
    const std::string_view bytes(static_cast<const char*>(address), address_bytes_);
    vectors_[vector][place] = bytes;
    inserted_.emplace(bytes);
  }
  void close(fid* object) {
    endpoints_.erase(reinterpret_cast<fid_ep*>(object));
    vectors_.erase(reinterpret_cast<fid_av*>(object));
  }

  /// Null if it is unknown, as are those below.
  [[nodiscard]] fid_cq* queue_of(fid_ep* endpoint) const {
    const auto found = endpoints_.find(endpoint);
    return found != endpoints_.end() ? found->second.queue : nullptr;
  }
  /// The endpoint of this process that an address of another's vector means.
  [[nodiscard]] fid_ep* find(fid_ep* from, fi_addr_t to) const {
    const auto source = endpoints_.find(from);
    if (source == endpoints_.end()) return nullptr;
    const auto vector = vectors_.find(source->second.vector);
    if (vector == vectors_.end()) return nullptr;
    const auto place = vector->second.find(to);
    if (place == vector->second.end()) return nullptr;
    for (const auto& [endpoint, item] : endpoints_) {
      if (item.address == place->second) return endpoint;
    }
    return nullptr;
  }
  /// Whether the vector of an endpoint holds the address of another.
  [[nodiscard]] bool knows(fid_ep* endpoint, fid_ep* other) const {
    const auto vector = vectors_.find(endpoints_.at(endpoint).vector);
    if (vector == vectors_.end()) return false;
    const std::string& wanted = endpoints_.at(other).address;
    return std::any_of(vector->second.begin(), vector->second.end(),
                       [&](const auto& each) { return each.second == wanted; });
  }
  /// Whether any vector has ever held that address.
  [[nodiscard]] bool has_inserted(const void* address) const {
    return inserted_.contains(std::string(static_cast<const char*>(address), address_bytes_));
  }

 private:
  struct member {
    fid_cq* queue = nullptr;
    fid_av* vector = nullptr;
    std::string address{};
  };
  std::size_t address_bytes_ = 0;  // of the provider
  std::map<fid_ep*, member> endpoints_;
  std::map<fid_av*, std::map<fi_addr_t, std::string>> vectors_;
  std::set<std::string> inserted_;
};

}  // namespace weft::test
