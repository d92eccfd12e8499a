// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "duel.hpp"

namespace weft::stress {

/// Whether the devices and the address that the user has named can be used; if not, it has said why.
[[nodiscard]] bool can_be_used(const battleground& where);

}  // namespace weft::stress
