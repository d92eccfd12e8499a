// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>

namespace weft::mr::porting {

/// Lets peers in, also through windows, if the region was made with registration_options::disabled. errc::busy while
/// refresh() runs. See fi_mr_enable(3).
void enable(region& target);

/// Whether peers are let in; false for an empty region.
[[nodiscard]] bool enabled(const region& target) noexcept;

}  // namespace weft::mr::porting
