// SPDX-License-Identifier: Apache-2.0
#include <weft/net/software/atomic_request.hpp>

namespace weft::net::software {

bool changes(const atomic_request& request, std::uint64_t value) noexcept {
  if (request.operation != atomic_operation::compare_swap) return true;
  return ((request.compare ^ value) & request.compare_mask) == 0;
}

std::uint64_t apply(const atomic_request& request, std::uint64_t value) noexcept {
  if (request.operation == atomic_operation::compare_swap) {
    if (!changes(request, value)) return value;
    return (value & ~request.mask) | (request.operand & request.mask);
  }
  // Mask each field's top bit so that no carry crosses fields, then add the top bits by XOR.
  return ((value & ~request.mask) + (request.operand & ~request.mask)) ^ ((value ^ request.operand) & request.mask);
}

}  // namespace weft::net::software
