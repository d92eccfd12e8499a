// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::mr {

/// From which of a pool's two budgets a buffer comes. They are strictly apart, so that a sender that has used up its
/// own can still receive, and the other way round.
enum class budget : std::uint8_t { send, receive };

}  // namespace weft::mr
