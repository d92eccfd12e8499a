// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "duel.hpp"

namespace weft::stress {

/// Has the two sides of a duel fight for so long. Calls `look` every tenth of a second, with the bytes of memory that
/// both have. What was wrong, in words; empty if nothing was.
[[nodiscard]] std::string fight(const duel& what, const battleground& where, std::uint64_t seed,
                                std::chrono::milliseconds time, score& count,
                                const std::function<void(std::uint64_t resident)>& look);

}  // namespace weft::stress
