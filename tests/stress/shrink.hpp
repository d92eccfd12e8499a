// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "script.hpp"

namespace weft::stress {

/// Cuts a script that fails down to a short one that still fails: connections, tasks, faults and steps go one by one,
/// and what is left is made smaller, until nothing of it can be spared or `most_tries` have been made.
[[nodiscard]] sim::script shrink(sim::script failing, const std::function<bool(const sim::script&)>& fails,
                                 std::size_t most_tries);

}  // namespace weft::stress
