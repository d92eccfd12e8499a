// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>

namespace weft {
class worker_pool;
}

namespace weft::net {

/// The workers that take memory back, if the link's executor runs and can take the result afterwards; null otherwise,
/// and if there is no memory for them.
[[nodiscard]] inline worker_pool* find_workers(const executor_core& home) noexcept try {
  return home.on_own_thread() || home.is_driven() ? &resource_workers(&home) : nullptr;
} catch (...) {  // no memory for the pool
  return nullptr;
}

}  // namespace weft::net
