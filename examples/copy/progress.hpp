// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace copy {

/// "512 B", "1.50 GiB".
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

/// "1.00 GiB in 1.25 s, 819 MiB/s"
[[nodiscard]] std::string format_speed(std::uint64_t bytes, std::chrono::duration<double> time);

/// Shows on the standard output how a file gets on: a bar with the rate and the time left where that is a terminal,
/// else a line every two seconds. Keeps the longest time in which it did not get on.
class progress {
 public:
  progress(std::string name, std::uint64_t total_bytes);
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() { erase(); }  // what was left standing must not run into an error message

  void advance(std::uint64_t bytes);
  /// The bar makes room for a last line with what was moved, how fast, the longest pause between two steps, and `more`.
  void finish(const std::string& more);

 private:
  using clock = std::chrono::steady_clock;

  [[nodiscard]] double done_part() const noexcept;
  void show(clock::time_point now);
  [[nodiscard]] std::string bar() const;
  [[nodiscard]] std::string figures(clock::time_point now) const;
  void erase();

  std::string name_;
  std::uint64_t total_bytes_;
  std::uint64_t done_bytes_ = 0;
  clock::time_point start_ = clock::now();
  clock::time_point shown_ = start_;
  std::optional<clock::time_point> advanced_;
  clock::duration longest_pause_{};
  bool terminal_;
  bool visible_ = false;
};

}  // namespace copy
