// SPDX-License-Identifier: Apache-2.0
#include <weft/round/one.hpp>
#include <weft/round/two.hpp>
