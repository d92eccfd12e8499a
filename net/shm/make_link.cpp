// SPDX-License-Identifier: Apache-2.0
#include <weft/net/shm/link.hpp>
#include <weft/net/shm/shm_link.hpp>

#include <utility>

namespace weft::net::shm {

std::unique_ptr<net::link> make_link(established made, std::shared_ptr<software::domain> home,
                                     std::shared_ptr<net::receive_queue> receives) {
  return std::make_unique<shm_link>(std::move(made), std::move(home), std::move(receives));
}

}  // namespace weft::net::shm
