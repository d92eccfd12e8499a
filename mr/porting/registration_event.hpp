// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/runtime/result.hpp>

#include <utility>

namespace weft::mr::porting {

/// How a registration that was submitted has ended.
struct registration_event {
  /// An end, with the context that was given.
  registration_event(void* given, result<region> end) noexcept : context(given), outcome(std::move(end)) {}

  void* context;           ///< what submit() was given; weft does not look at it
  result<region> outcome;  ///< the region, which is the reader's now, or why there is none
};

}  // namespace weft::mr::porting
