// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace info {

enum class severity : std::uint8_t {
  ok,
  hint,     ///< could be better, or matters only to some
  warning,  ///< works, and badly
  error,    ///< hinders
};

[[nodiscard]] const char* name_of(severity level) noexcept;

/// One thing that was looked at.
struct finding {
  severity level = severity::ok;
  std::string area;    ///< "memlock", "port rxe0/1"
  std::string text;    ///< a sentence
  std::string remedy;  ///< what to do about it, with the command where there is one; empty if nothing
};

/// All of them, in the order in which they were found.
class findings {
 public:
  void ok(std::string area, std::string text) { add(severity::ok, std::move(area), std::move(text), {}); }
  void hint(std::string area, std::string text, std::string remedy) {
    add(severity::hint, std::move(area), std::move(text), std::move(remedy));
  }
  void warn(std::string area, std::string text, std::string remedy) {
    add(severity::warning, std::move(area), std::move(text), std::move(remedy));
  }
  void fail(std::string area, std::string text, std::string remedy) {
    add(severity::error, std::move(area), std::move(text), std::move(remedy));
  }
  void add(severity level, std::string area, std::string text, std::string remedy) {
    all_.push_back({level, std::move(area), std::move(text), std::move(remedy)});
  }

  [[nodiscard]] const std::vector<finding>& all() const noexcept { return all_; }
  [[nodiscard]] std::size_t count(severity level) const noexcept;
  /// The gravest; ok if there is none.
  [[nodiscard]] severity worst() const noexcept;

 private:
  std::vector<finding> all_;
};

}  // namespace info
