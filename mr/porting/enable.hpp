// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/runtime/task.hpp>

namespace weft::mr::porting {

/// Lets peers in, also through windows, if the region was made with registration_options::disabled. Where the fabric
/// keeps regions closed by itself (domain_capabilities::gates), that takes no time. Any other one registers the region
/// again, on a worker, if its usage lets peers in: it may get other keys, and slice() and remote() are errc::busy
/// meanwhile. A stop does not interrupt it.
///
/// errc::invalid_argument for an empty region. errc::busy while refresh() runs, and, where it is registered again,
/// while an operation uses a slice of it. Then, and if it cannot be registered, the region stays as it was. From an
/// executor. See fi_mr_enable(3).
[[nodiscard]] task<> enable(region& target);

/// Whether peers are let in; false for an empty region.
[[nodiscard]] bool enabled(const region& target) noexcept;

}  // namespace weft::mr::porting
