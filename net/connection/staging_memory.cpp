// SPDX-License-Identifier: Apache-2.0
#include <weft/net/connection/staging_memory.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <algorithm>
#include <utility>

namespace weft::net {

void staging_memory::pages::pin_for(const std::shared_ptr<mr::memory_device>& device) {
  pinned_for_.reserve(pinned_for_.size() + 1);
  if (device->pin(bytes())) pinned_for_.push_back(device);
}

task<staging_memory> staging_memory::make(mr::domain& domain, std::size_t bytes, mr::usage purpose) {
  const auto map = [&domain, bytes] {
    return std::make_unique<pages>(domain.provide(bytes, false, -1, system_calls::kernel()));
  };
  auto memory = co_await weft::detail::offload_for_resources(map);
  pages& known = *memory;
  mr::region region = co_await domain.register_memory(std::move(memory), {.usage = purpose});
  co_return staging_memory(std::move(region), known);
}

bool staging_memory::is_known_to(const mr::memory_device& device) const noexcept {
  return std::any_of(known_to_.begin(), known_to_.end(), [&](const auto& each) { return each.get() == &device; });
}

// The mutex admits one worker at a time to the pages; known_to_ is used on the executor's thread only.
task<> staging_memory::pin_for(std::shared_ptr<mr::memory_device> device) {
  if (is_known_to(*device)) co_return;
  const auto lock = co_await pinning_->lock();
  if (is_known_to(*device)) co_return;
  known_to_.reserve(known_to_.size() + 1);
  pages& memory = *pages_;
  const auto pin = [&memory, &device] { memory.pin_for(device); };
  co_await weft::detail::offload_for_resources(pin);
  known_to_.push_back(std::move(device));
}

}  // namespace weft::net
