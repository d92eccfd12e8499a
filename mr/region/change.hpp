// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region/population.hpp>
#include <weft/mr/region/region_state.hpp>
#include <weft/mr/registration.hpp>
#include <weft/runtime/core/stop_shield.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/task.hpp>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>

// How a region is refreshed, or registered anew.
namespace weft::mr::detail {

/// The time in which a worker changes what is registered. The region's handle keeps what it had, and may be moved; an
/// owning one may go, and its memory with this.
class change {
 public:
  /// errc::busy while somebody uses it; `what` is to be done with it.
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

/// Has a worker run `work`, which makes of `item` another registration of these ranges, once their pages are there;
/// empty if there is none left. The state itself is written here alone, on its executor, and not by the worker, also
/// where the frame is destroyed meanwhile.
template <class Work>
task<> work_on(region_state& target, std::optional<registration>& item, std::span<const std::span<std::byte>> ranges,
               const registration_options& options, Work& work) {
  const struct outcome {
    region_state& target;
    const std::optional<registration>& item;
    ~outcome() {
      if (item) {
        target.registration = *item;
        return;
      }
      target.registered = false;
      target.bytes = {};
      target.usage = target.options.usage = mr::usage::none;
    }
  } written{target, item};
  const weft::detail::stop_shield shield(co_await weft::detail::current_promise());
  co_await populate(*target.domain, ranges, options);
  co_await weft::detail::offload_for_resources(work);
}

}  // namespace weft::mr::detail
