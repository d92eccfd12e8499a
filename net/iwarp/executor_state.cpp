// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/executor_state.hpp>

namespace weft::net::iwarp {

executor_state& executor_state::of(const std::shared_ptr<domain>& home) {
  executor_core& running = *executor_core::current();
  if (auto* found = running.find_attachment(home.get())) return static_cast<executor_state&>(*found);
  return static_cast<executor_state&>(running.attach(home.get(), std::make_unique<executor_state>(home)));
}

}  // namespace weft::net::iwarp
