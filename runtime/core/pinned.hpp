// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

namespace weft {

/// A callable that can stand next to co_await: an lvalue, or something trivially destructible. A temporary closure
/// that owns anything would dangle in a lazy coroutine, and GCC 12 destroys it twice.
template <class F>
concept pinned = std::is_lvalue_reference_v<F> || std::is_trivially_destructible_v<std::remove_cvref_t<F>>;

}  // namespace weft
