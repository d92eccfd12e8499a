// SPDX-License-Identifier: Apache-2.0
#include "shm/link_in_tests.hpp"

namespace weft::net::shm {

std::unique_ptr<net::link> make_link(established made, std::shared_ptr<software::domain>,
                                     std::shared_ptr<net::receive_queue>) {
  return std::make_unique<weft::test::link_in_tests>(std::move(made));
}

}  // namespace weft::net::shm
