// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device/copy_engine.hpp>
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
#include <utility>

// How a region is refreshed, or registered again.
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

/// Populates these ranges, then has a worker run `work`, which replaces `item` by another registration, or leaves
/// `item` empty if the ranges are no longer registered. Then this coroutine, not the worker, copies `item` to `target`,
/// or makes `target` empty: on its executor, and also when `work` throws or the frame is destroyed early.
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
      copy_engine::close_key(std::exchange(target.owners_key, 0));
      target.bytes = {};
      target.usage = target.options.usage = mr::usage::none;
    }
  } written{target, item};
  const weft::detail::stop_shield shield(co_await weft::detail::current_promise());
  co_await populate(*target.domain, ranges, options);
  co_await weft::detail::offload_for_resources(work);
}

}  // namespace weft::mr::detail
