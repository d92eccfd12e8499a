// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace weft::net {

/// What a peer says, to be quoted in an error: text as it is, anything else in hexadecimal digits.
[[nodiscard]] std::string in_words(std::span<const std::byte> said);

}  // namespace weft::net
