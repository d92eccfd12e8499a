// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstddef>
#include <string>
#include <system_error>

/// What a library that is loaded at run time gives to a program, where both use weft.
struct plugin {
  const std::error_category* category;
  const void* frames;          ///< the frame cache of the thread that asks
  const void* next_to_resume;  ///< and its variable for the coroutine that goes on next
  void (*fail)(const char* words);
  weft::task<std::size_t> (*count)(weft::task<std::size_t> inner, std::size_t depth);
};

/// The name of the function that returns it.
inline constexpr const char* plugin_entry = "weft_test_plugin";
