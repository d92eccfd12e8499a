// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

namespace weft {

/// A callable that can stand next to co_await: an lvalue, or something trivially destructible. A temporary closure
/// that owns anything would dangle in a lazy coroutine, and GCC 12 destroys it twice.
template <class F>
concept pinned = std::is_lvalue_reference_v<F> || std::is_trivially_destructible_v<std::remove_cvref_t<F>>;

namespace detail {

/// Rejects a callable that is not pinned, with the reason in words.
template <class F>
consteval void require_pinned() {
  static_assert(pinned<F>,
                "name this closure first, auto work = [...] {...}, and pass the name: it owns something, so that a "
                "temporary would dangle, or be destroyed twice by GCC 12 (docs/gcc-12.md)");
}

}  // namespace detail

}  // namespace weft
