// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <source_location>
#include <string>
#include <string_view>

namespace weft::detail {

/// What a coroutine is called, from where it is written: "net::connection::close", "main::lambda".
[[nodiscard]] std::string function_name(std::source_location origin);

/// The same without what a compiler prints around it: "weft::task<T> f(int) [with T = int]" is "f".
[[nodiscard]] std::string function_name(std::string_view pretty);

/// "serve (server.cpp:20)".
[[nodiscard]] std::string name_and_place(std::source_location origin);

/// Whether it is one of the runtime's own wrappers, which say nothing to a user.
[[nodiscard]] bool is_wrapper(std::source_location origin);

}  // namespace weft::detail
