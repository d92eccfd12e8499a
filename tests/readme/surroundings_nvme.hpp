// SPDX-License-Identifier: Apache-2.0
// What fragments about examples/nvme find declared.
#pragma once

#include "../examples/sparse_disk.hpp"
#include "surroundings.hpp"
#include <nvme/target.hpp>

namespace surroundings_nvme {

using namespace surroundings_plain;

}  // namespace surroundings_nvme
