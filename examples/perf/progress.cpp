// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/core.h>

#include <unistd.h>

#include <cstdio>

#include "units.hpp"

namespace perf {
namespace {

constexpr std::size_t bar_width = 24;
constexpr const char* erase_line = "\r\x1b[K";

}  // namespace

progress::progress() : terminal_(::isatty(STDERR_FILENO) != 0) {}

void progress::begin(const test& next) {
  name_ = fmt::format("{} {} {}", next.what->name, perf::name_of(next.measures), format_size(next.size));
  done(0);
}

void progress::done(double part) {
  if (!terminal_) return;
  const auto filled = static_cast<std::size_t>(part * bar_width);
  fmt::print(stderr, "{}{} [{}{}]", erase_line, name_, std::string(filled, '#'), std::string(bar_width - filled, '.'));
  std::fflush(stderr);
  visible_ = true;
}

void progress::erase() {
  if (!visible_) return;
  visible_ = false;
  fmt::print(stderr, "{}", erase_line);
  std::fflush(stderr);
}

}  // namespace perf
