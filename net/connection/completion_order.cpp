// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/completion_order.hpp>

namespace weft::net {

taken completion_order::wait_for_turn(weft::detail::promise_base& waiter) noexcept {
  home_.ready(waiter);  // mutant: go on ahead of tasks whose operations have completed
  note();
  return taken::in_turn;
}

}  // namespace weft::net
