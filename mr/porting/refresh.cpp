// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/refresh.hpp>
#include <weft/mr/region/change.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/runtime/error.hpp>

#include <fmt/core.h>

namespace weft::mr::porting {

namespace {

void check_not_empty(const region& target) {
  if (!target) throw error(errc::invalid_argument, "refresh an empty region");
}

// Refreshes all of the region, because the transports register regions as a whole.
task<> refresh_all(region& target) {
  mr::detail::region_state& state = *target.state();
  if (state.options.dmabuf) throw error(errc::invalid_argument, "refresh a region of device memory (dmabuf)");
  if (state.device != nullptr) throw error(errc::invalid_argument, "refresh a region of device memory");
  if (!state.enabled && !state.domain->capabilities().gates) {
    throw error(errc::invalid_argument, "refresh a region that is disabled: enable it first");
  }
  if (state.options.direct) throw error(errc::invalid_argument, "refresh a region that peers may use directly");
  const mr::detail::change going_on(state, "refresh");
  registration_options options = state.options;
  options.disabled = !state.enabled;
  co_await mr::detail::register_anew(state, options);
}

}  // namespace

task<> refresh(region& target, std::size_t offset, std::size_t length) {
  check_not_empty(target);
  mr::detail::check_range(offset, length, target.size());
  co_await refresh_all(target);
}

task<> refresh(region& target, std::span<const std::span<std::byte>> ranges) {
  check_not_empty(target);
  for (const std::span<std::byte> each : ranges) {
    if (target.state()->contains(each)) continue;
    throw error(errc::out_of_range, fmt::format("refresh {} bytes that lie in no range of the region", each.size()));
  }
  co_await refresh_all(target);
}

task<> refresh(region& target) { return refresh(target, 0, target.size()); }

}  // namespace weft::mr::porting
