// SPDX-License-Identifier: Apache-2.0
// For a fragment that uses no more than the standard library, and is no coroutine.
#pragma once

#include <string>

namespace surroundings_nothing {}
