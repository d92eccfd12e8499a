// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/task.hpp>

namespace weft {

// Removes the first chain from the list, then stops its operation, which may destroy this chain or others.
void stop_source::stop_first_chain() noexcept {
  auto& first = static_cast<detail::promise_base&>(*chains_);
  first.leave();
  if (detail::operation_base* const waited = first.stoppable()) waited->stop();
}

// Lets go of the tasks that have a token of the source. Ends the program if one of them waits for an operation that a
// stop of the source would end.
[[gnu::cold]] void stop_source::let_chains_go() noexcept {
  while (chains_ != nullptr) {
    auto& first = static_cast<detail::promise_base&>(*chains_);
    first.leave();
    if (first.stoppable() != nullptr)
      detail::terminate_because("a stop_source was destroyed while an operation still listens to it");
  }
}

}  // namespace weft
