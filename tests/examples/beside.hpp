// SPDX-License-Identifier: Apache-2.0
// What tests of the examples share whose peers are on one executor.
#pragma once

#include <weft/weft.hpp>

#include "kit/standard.hpp"

namespace weft::test {

/// Runs `serve(listener)` beside `use(address)`, and stops it when that is over.
template <class Serve, class Use>
task<> beside(net::device& device, const Serve& serve, const Use& use) {
  auto listener = co_await device.listen("127.0.0.1:0");
  const auto both = [&](scope& tasks) -> task<> {
    tasks.spawn(serve(listener));
    co_await use(std::string(listener.address()));
    tasks.request_stop();
  };
  co_await with_scope(on_failure::stop_siblings, both);
}

/// Takes what a peer says, as `next()` yields it, until the peer has gone. Whether that was in order.
template <class Next>
task<bool> goes_in_order(const Next& next) {
  try {
    while (const auto message = co_await next()) {
    }
  } catch (const error&) {
    co_return false;
  }
  co_return true;
}

}  // namespace weft::test
