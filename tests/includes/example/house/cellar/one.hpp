// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/house/attic/two.hpp>
