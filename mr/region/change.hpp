// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/region_state.hpp>
#include <weft/mr/registration.hpp>
#include <weft/runtime/task.hpp>

#include <atomic>
#include <cstdint>

// How a region is refreshed, or enabled.
namespace weft::mr::detail {

/// Holds a region while a worker changes its registration. The region's handle may be moved meanwhile, and the handle
/// of a region that owns its memory may be destroyed: then the memory is freed once this object is gone.
class change {
 public:
  /// Throws errc::busy while an operation, a window or another change holds the region; last uses do not count. `what`
  /// is the verb in the error's text.
  change(region_state& target, const char* what) : target_(target) {
    std::uint32_t alone = 1;
    if (!target.holders.compare_exchange_strong(alone, 2, std::memory_order_acq_rel)) {
      if (!target.held_by_handle_alone()) throw target.in_use(alone, what);
      target.holders.fetch_add(1, std::memory_order_relaxed);
    }
    target.changing = true;
  }
  change(const change&) = delete;
  change& operator=(const change&) = delete;
  ~change() {
    target_.changing = false;
    target_.let_go();
  }

 private:
  region_state& target_;
};

/// Populates the memory of `target`, then has a worker register it anew with `options`, and count writes by the new
/// keys too. Call it while a `change` holds the region. If it throws weft::error, the registration is as it was. A stop
/// does not interrupt it.
task<> register_anew(region_state& target, registration_options options);

}  // namespace weft::mr::detail
