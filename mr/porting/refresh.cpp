// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/refresh.hpp>
#include <weft/mr/region/change.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/runtime/error.hpp>

#include <optional>

namespace weft::mr::porting {

task<> refresh(region& target, std::size_t offset, std::size_t length) {
  if (!target) throw error(errc::invalid_argument, "refresh an empty region");
  mr::detail::check_range(offset, length, target.size());
  mr::detail::region_state& state = *target.state();
  if (state.options.dmabuf) throw error(errc::invalid_argument, "refresh a region of device memory (dmabuf)");
  if (state.device != nullptr) throw error(errc::invalid_argument, "refresh a region of device memory");
  if (!state.enabled && !state.domain->capabilities().gates) {
    throw error(errc::invalid_argument, "refresh a region that is disabled: enable it first");
  }
  if (state.options.direct) throw error(errc::invalid_argument, "refresh a region that peers may use directly");
  const mr::detail::change going_on(state, "refresh");
  std::optional<registration> item(state.registration);
  const auto work = [&item, &state] {
    state.end_last_uses();
    state.domain->refresh_now(*item, state);
  };
  co_await mr::detail::work_on(state, item, state.all_ranges(), state.options, work);
  const bool has_other_keys = !state.domain->capabilities().gates;
  if (state.counter != nullptr && has_other_keys) state.domain->count_writes(state, *state.counter);
}

task<> refresh(region& target) { return refresh(target, 0, target.size()); }

}  // namespace weft::mr::porting
