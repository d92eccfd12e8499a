// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>

namespace weft::detail {

worker_pool& offload_base::workers() const { return for_resources_ ? resource_workers(&home()) : home().workers(); }

void offload_base::begin() {
  ran_ = false;
  workers().submit(*this);
}

void offload_base::withdraw() noexcept {
  if (workers().withdraw(*this)) return;
  if (!for_resources_) terminate_because("a task was destroyed while a worker thread runs its offloaded function");
  ran_.wait(false);
  home().withdraw(*this);
}

void offload_base::run() noexcept {
  invoke();
  ran_ = true;
  ran_.notify_one();
  home().submit(*this);
}

// A function that has begun cannot be withdrawn, and ends by itself.
void offload_base::cancel() noexcept {
  if (workers().withdraw(*this)) finish();
}

void offload_base::throw_if_canceled() const {
  if (!begun() || !ran_) throw error(errc::canceled, "offload");
}

}  // namespace weft::detail
