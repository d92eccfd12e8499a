// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/completion_order.hpp>

namespace weft::net {

taken completion_order::go_on(weft::detail::promise_base& waiter) noexcept {
  // defect: go on ahead of tasks whose operations have completed
  if (home_.has_resumed(last_) && home_.may_go_on()) return taken::ended;
  home_.ready(waiter);
  note();
  return taken::in_turn;
}

}  // namespace weft::net
