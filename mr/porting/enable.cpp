// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/enable.hpp>
#include <weft/mr/registrar.hpp>

namespace weft::mr::porting {

void enable(region& target) {
  mr::detail::region_state* const state = target.state();
  if (state == nullptr) return;
  state->check_unchanging("enable");
  if (!target || state->enabled) return;
  state->domain->enable(state->registration);
  state->windows.open = true;
  state->enabled = true;
}

bool enabled(const region& target) noexcept {
  const mr::detail::region_state* const state = target.state();
  return state != nullptr && state->enabled;
}

}  // namespace weft::mr::porting
