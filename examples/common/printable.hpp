// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace common {

/// The text with '?' for each byte of a control character, and for each that is no UTF-8: on a terminal it is one line,
/// and does nothing. Control characters are those of ASCII, and U+0080 to U+009F, of which some begin commands.
[[nodiscard]] std::string printable(std::string_view text);

/// Whether it has control characters. Text that is no UTF-8 may have none: a file may be called so.
[[nodiscard]] bool has_control(std::string_view text);

}  // namespace common
