// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/poller_set.hpp>
#include <weft/runtime/error.hpp>

#include <algorithm>
#include <optional>

namespace weft::detail {

void poller_watch::unwatch(event_driver& driver) noexcept {
  if (!in_progress()) return;
  driver.cancel(*this);
  constexpr std::size_t batch = 64;
  while (in_progress()) driver.wait(batch, std::nullopt);
}

void poller_set::add(poller& source, system_calls& calls) {
  all_.push_back(std::make_unique<poller_watch>(source, calls));
  empty_ = false;
  if (source.may_lose_events()) ++forgetful_;
}

void poller_set::remove(poller& source, event_driver& driver) noexcept {
  const auto found =
      std::find_if(all_.begin(), all_.end(), [&](const auto& each) { return &each->source() == &source; });
  if (found == all_.end()) terminate_because("a poller was removed from an executor that does not have it");
  (*found)->unwatch(driver);
  all_.erase(found);
  empty_ = all_.empty();
  if (source.may_lose_events()) --forgetful_;
}

}  // namespace weft::detail
