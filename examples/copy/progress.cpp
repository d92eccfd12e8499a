// SPDX-License-Identifier: Apache-2.0
#include "progress.hpp"

#include <fmt/core.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

namespace copy {
namespace {

using namespace std::chrono_literals;

constexpr auto between_bars = 100ms;
constexpr auto between_lines = 2s;
constexpr std::size_t bar_width = 24;
constexpr std::size_t shortest_name = 8;
constexpr std::string_view erase_line = "\r\x1b[K";

std::size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0 ? size.ws_col : 80;
}

double per_second(std::uint64_t bytes, std::chrono::duration<double> time) {
  return time.count() > 0 ? static_cast<double>(bytes) / time.count() : 0;
}

std::string format_time(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  constexpr const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  const char* const* unit = units;
  while (value >= 1024) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : value < 100 ? 1 : 0, *unit);
}

std::string format_speed(std::uint64_t bytes, std::chrono::duration<double> time) {
  return fmt::format("{} in {:.2f} s, {}/s", format_bytes(bytes), time.count(),
                     format_bytes(static_cast<std::uint64_t>(per_second(bytes, time))));
}

progress::progress(std::string name, std::uint64_t total_bytes)
    : name_(std::move(name)), total_bytes_(total_bytes), terminal_(::isatty(STDOUT_FILENO) != 0) {}

void progress::advance(std::uint64_t bytes) {
  done_bytes_ += bytes;
  const auto now = clock::now();
  longest_pause_ = std::max(longest_pause_, now - advanced_.value_or(now));
  advanced_ = now;
  if (now - shown_ < (terminal_ ? clock::duration(between_bars) : clock::duration(between_lines))) return;
  shown_ = now;
  show(now);
}

void progress::finish(const std::string& more) {
  erase();
  fmt::print("{}: {}, longest pause {} ms{}\n", name_, format_speed(done_bytes_, clock::now() - start_),
             std::chrono::ceil<std::chrono::milliseconds>(longest_pause_).count(), more);
  std::fflush(stdout);
}

void progress::show(clock::time_point now) {
  if (!terminal_) {
    fmt::print("{}: {}\n", name_, figures(now));
  } else {
    const std::string rest = fmt::format(" {} {}", bar(), figures(now));
    const std::size_t width = terminal_width();
    const std::size_t room = width > rest.size() + shortest_name ? width - rest.size() - 1 : shortest_name;
    fmt::print("{}{}{}", erase_line, name_.substr(0, room), rest);
    visible_ = true;
  }
  std::fflush(stdout);
}

std::string progress::bar() const {
  const auto filled = static_cast<std::size_t>(done_part() * bar_width);
  return "[" + std::string(filled, '#') + std::string(bar_width - std::min(filled, bar_width), '.') + "]";
}

double progress::done_part() const noexcept {
  return total_bytes_ != 0 ? static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_) : 1;
}

std::string progress::figures(clock::time_point now) const {
  const double rate = per_second(done_bytes_, now - start_);
  const double left = rate > 0 ? static_cast<double>(total_bytes_ - done_bytes_) / rate : 0;
  return fmt::format("{:.0f}% of {}, {}/s, {} left", std::floor(100 * done_part()), format_bytes(total_bytes_),
                     format_bytes(static_cast<std::uint64_t>(rate)), format_time(left));
}

void progress::erase() {
  if (!visible_) return;
  visible_ = false;
  fmt::print("{}", erase_line);
  std::fflush(stdout);
}

}  // namespace copy
