// SPDX-License-Identifier: Apache-2.0
#include <weft/net/link/transport.hpp>
#include <weft/net/rails/registry.hpp>

namespace weft::net::rails {

registry::delivery registry::deliver(const std::shared_ptr<registry>& self, const join& said,
                                     std::unique_ptr<link_request>& request) {
  const std::lock_guard lock(self->mutex_);
  const auto found = self->all_.find(said.id);
  if (found == self->all_.end()) return delivery::unknown;
  if (found->second.which == nullptr) return delivery::too_early;
  const auto shared = std::make_shared<std::unique_ptr<link_request>>(std::move(request));
  try {
    found->second.home->post([self, said, shared] {
      joinable* const which = self->find(said.id);
      if (which != nullptr) which->join_asked(said, std::move(*shared));
    });
  } catch (...) {
    request = std::move(*shared);
    throw;
  }
  return delivery::delivered;
}

}  // namespace weft::net::rails
