// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/region/change.hpp>
#include <weft/mr/region/population.hpp>
#include <weft/mr/registrar.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/offload.hpp>

namespace weft::mr::detail {

task<> register_anew(region_state& target, registration_options options) {
  const weft::detail::stop_shield shield(co_await weft::detail::current_promise());
  co_await populate(*target.domain, target.all_ranges(), options);
  const auto work = [&target, &options] {
    target.end_last_uses();
    const auto key = target.registration.remote_key;
    target.domain->refresh_now(target, target.bytes, options);
    const bool has_other_keys = !target.domain->capabilities().gates || target.registration.remote_key != key;
    if (target.counter != nullptr && has_other_keys) target.domain->count_writes(target, *target.counter);
  };
  co_await weft::detail::offload_for_resources(work);
}

}  // namespace weft::mr::detail
