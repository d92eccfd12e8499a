// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft::detail {

/// Ends the process if it was called before with another name. A program must use only one of the two libraries,
/// because weft's types for one have the same names as those for the other.
void require_one_asio(const char* name) noexcept;

}  // namespace weft::detail
