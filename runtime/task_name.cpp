// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/task_name.hpp>

#include <fmt/core.h>

#include <array>
#include <cstddef>

namespace weft::detail {
namespace {

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size())) {
    text.replace(at, what.size(), with);
  }
}

// Drops the template arguments: everything between angle brackets.
std::string without_arguments(std::string_view text) {
  std::string kept;
  std::size_t depth = 0;
  for (const char c : text) {
    if (c == '<') ++depth;
    if (depth == 0) kept.push_back(c);
    if (c == '>' && depth > 0) --depth;
  }
  return kept;
}

}  // namespace

std::string function_name(std::string_view pretty) {
  std::string text(pretty);
  // Rewrites what looks like a list of parameters or of template arguments, but is none.
  replace_all(text, "(anonymous namespace)::", "");
  replace_all(text, "{anonymous}::", "");
  replace_all(text, "(anonymous class)", "lambda");
  replace_all(text, "<lambda(", "lambda(");
  text = without_arguments(text);
  const bool is_lambda = text.find("::lambda") != std::string::npos;
  const std::size_t end = text.find('(');
  if (end == std::string::npos) return text;
  const std::size_t space = text.rfind(' ', end);
  const std::size_t start = space == std::string::npos ? 0 : space + 1;
  std::string name = text.substr(start, end - start);
  if (is_lambda && name.find("::lambda") == std::string::npos) name += "::lambda";
  if (name.starts_with("weft::")) name.erase(0, 6);
  return name;
}

std::string function_name(std::source_location origin) {
  return function_name(std::string_view(origin.function_name()));
}

std::string name_and_place(std::source_location origin) {
  std::string_view file = origin.file_name();
  file.remove_prefix(file.find_last_of('/') + 1);  // npos + 1 is 0
  return fmt::format("{} ({}:{})", function_name(origin), file, origin.line());
}

bool is_wrapper(std::source_location origin) {
  const std::string name = function_name(origin);
  constexpr std::array<std::string_view, 4> wrappers = {"as_result", "when_all", "when_any", "with_scope"};
  for (const std::string_view each : wrappers) {
    if (name == each || name == std::string(each) + "::lambda") return true;
  }
  return name.starts_with("detail::");
}

}  // namespace weft::detail
