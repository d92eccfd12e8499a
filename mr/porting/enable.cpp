// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/enable.hpp>
#include <weft/mr/region/change.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/runtime/error.hpp>

namespace weft::mr::porting {
namespace {

void let_in(mr::detail::region_state& target) noexcept {
  target.windows.open = true;
  target.enabled = true;
}

// Registers the region anew, now with rights for peers. If the handle of a region that owns its memory is destroyed
// meanwhile, `going_on` frees the state.
task<> open_to_peers(mr::detail::region_state& target) {
  const mr::detail::change going_on(target, "enable");
  registration_options options = target.options;
  options.disabled = false;
  co_await mr::detail::register_anew(target, options);
  target.set(options);
  let_in(target);
}

}  // namespace

task<> enable(region& target) {
  mr::detail::region_state* const state = target.state();
  if (!target) throw error(errc::invalid_argument, "enable an empty region");
  state->check_unchanging("enable");
  if (state->enabled) co_return;
  const bool has_gates = state->domain->capabilities().gates;
  if (!has_gates && overlaps(state->options.usage, peer_usages)) co_return co_await open_to_peers(*state);
  if (has_gates) state->domain->enable(state->registration);
  let_in(*state);
}

bool enabled(const region& target) noexcept { return target && target.state()->enabled; }

}  // namespace weft::mr::porting
