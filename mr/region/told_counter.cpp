// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/region/told_counter.hpp>
#include <weft/mr/region/write_counter_core.hpp>
#include <weft/runtime/core/fork_guard.hpp>
#include <weft/runtime/system/random.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <array>
#include <mutex>
#include <new>
#include <unordered_map>

namespace weft::mr::detail {
namespace {

constinit std::mutex open_counters_mutex;
using open_counters = std::unordered_map<std::uint32_t, std::shared_ptr<write_counter_core>>;

open_counters& of_process() noexcept {
  // Never destroyed, because static objects may own regions.
  alignas(open_counters) static std::array<std::byte, sizeof(open_counters)> room;
  static open_counters& all = *::new (room.data()) open_counters;
  return all;
}

std::uint32_t draw_number() {
  std::uint32_t drawn = 0;
  while (drawn == 0) drawn = weft::detail::draw<std::uint32_t>(system_calls::kernel());
  return drawn;
}

}  // namespace

told_counter::told_counter(std::shared_ptr<write_counter_core> counts) {
  if (!weft::detail::unlock_in_children<open_counters_mutex>()) throw std::bad_alloc();
  open_counters& all = of_process();
  while (number_ == 0) {
    const std::uint32_t drawn = draw_number();
    const std::lock_guard lock(open_counters_mutex);
    if (all.try_emplace(drawn, counts).second) number_ = drawn;
  }
}

told_counter::~told_counter() {
  if (number_ == 0) return;
  open_counters& all = of_process();
  std::shared_ptr<write_counter_core> last;  // destroyed after the lock is released
  const std::lock_guard lock(open_counters_mutex);
  const auto found = all.find(number_);
  last = std::move(found->second);
  all.erase(found);
}

void told_counter::add(std::uint32_t number, std::uint32_t writes) noexcept {
  std::shared_ptr<write_counter_core> counter;
  {
    open_counters& all = of_process();
    const std::lock_guard lock(open_counters_mutex);
    const auto found = all.find(number);
    if (found == all.end()) return;
    counter = found->second;
  }
  counter->add(writes);
}

}  // namespace weft::mr::detail
