// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace weft::mr {

/// The two budgets of a pool. They are strictly separate, so that a program whose send budget is exhausted can still
/// receive, and the other way round.
enum class budget : std::uint8_t { send, receive };

}  // namespace weft::mr
