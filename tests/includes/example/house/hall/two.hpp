// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/house/cellar/one.hpp>
#include <weft/house/kitchen/one.hpp>
