// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace weft::detail {

/// Ends the process if it was called before with another name: what is made of one library's types has the same names
/// as what is made of the other's, so that a program uses one of them.
void require_one_asio(const char* name) noexcept;

}  // namespace weft::detail
