// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <span>

namespace weft::mr::porting {

/// Registers a region's pages again, after something else has been mapped in place of `length` bytes from `offset` on.
/// All of the region is registered again. Meanwhile the region is closed: peers that use it lose their connections
/// (over rails, only the access fails), and slice() and remote() throw errc::busy; size() and bytes() stay as they
/// were. Where domain_capabilities::gates is false, the region gets other keys: call slice() and remote() again.
///
/// errc::busy as with region::release(); errc::out_of_range; errc::invalid_argument for an empty region, device memory,
/// a direct region, and a disabled one where domain_capabilities::gates is false. If the pages cannot be registered,
/// the region stays as it was. A stop does not interrupt it. From an executor. See fi_mr_refresh(3).
task<> refresh(region& target, std::size_t offset, std::size_t length);
/// Refreshes several ranges, each inside one range of the region. `ranges` is needed until the task has ended.
task<> refresh(region& target, std::span<const std::span<std::byte>> ranges);
/// Refreshes all of the region.
task<> refresh(region& target);

}  // namespace weft::mr::porting
