// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/runtime/task.hpp>

namespace weft::mr::porting {

/// Gives peers access, also through windows, to a region that was made with registration_options::disabled. A fabric
/// that keeps regions closed by itself (domain_capabilities::gates) opens it at once. Any other fabric registers the
/// region anew, on a worker, if the region's usage gives peers access: its keys may change, and slice() and remote()
/// throw errc::busy meanwhile. A device that pins memory has it pinned twice until then. A stop does not interrupt it.
///
/// errc::invalid_argument for an empty region. errc::busy while the region is being refreshed or enabled, and, if it
/// has to be registered anew, while an operation or a task that waits for remote_writes() uses it. After such an error,
/// or if the registration fails, the region is as before. From an executor. See fi_mr_enable(3).
task<> enable(region& target);

/// Whether the region is open to peers; false for an empty region.
[[nodiscard]] bool enabled(const region& target) noexcept;

}  // namespace weft::mr::porting
