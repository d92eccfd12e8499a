// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <span>

namespace weft::mr::porting {

/// Registers the pages behind `length` bytes from `offset` on again, after something else has been mapped there.
/// Meanwhile the region is closed: peers that use it lose their connections, slice() and remote() are errc::busy;
/// size() and bytes() stay as they were. Where the device pins, the region gets other keys: call slice() and remote()
/// again.
///
/// errc::busy as with region::release(); errc::out_of_range; errc::invalid_argument for an empty region, device memory,
/// a direct region, and one that is disabled where domain_capabilities::gates is false. If the pages cannot be
/// registered, the region stays as it was. A stop does not interrupt it. From an executor. See fi_mr_refresh(3).
task<> refresh(region& target, std::size_t offset, std::size_t length);
/// Refreshes several ranges, each inside one range of the region. `ranges` is needed until the task has ended.
task<> refresh(region& target, std::span<const std::span<std::byte>> ranges);
/// Refreshes all of the region.
task<> refresh(region& target);

}  // namespace weft::mr::porting
