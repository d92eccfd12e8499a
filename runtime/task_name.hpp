// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>
#include <string>
#include <string_view>

namespace weft::detail {

/// The name of a coroutine's function: "net::connection::close", "main::lambda".
[[nodiscard]] std::string function_name(std::source_location origin);

/// The name within a compiler's description of a function: of "weft::task<T> f(int) [with T = int]" it is "f".
[[nodiscard]] std::string function_name(std::string_view pretty);

/// The function's name and its place: "serve (server.cpp:20)".
[[nodiscard]] std::string name_and_place(std::source_location origin);

/// Whether the function is one of the runtime's wrapper coroutines, which mean nothing to a user.
[[nodiscard]] bool is_wrapper(std::source_location origin);

}  // namespace weft::detail
