// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/runtime/result.hpp>

#include <utility>

namespace weft::mr::porting {

/// The result of a submitted registration.
struct registration_event {
  /// `given` is the context of submit(), `end` the outcome.
  registration_event(void* given, result<region> end) noexcept : context(given), outcome(std::move(end)) {}

  void* context;           ///< the context given to submit(); weft does not look at it
  result<region> outcome;  ///< the region, which the reader owns now, or the error
};

}  // namespace weft::mr::porting
