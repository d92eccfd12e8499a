// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <common/failure.hpp>

namespace kvcache {

/// What went wrong with a sequence or a measurement, in words.
using common::failure;

}  // namespace kvcache
