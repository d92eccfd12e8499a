// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/executor.hpp>
#include <weft/runtime/executor_group.hpp>
#include <weft/runtime/metrics.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace weft {
namespace {

// The size in UTF-8 of the character at the front of `text`; 0 if these bytes are no character.
std::size_t character_size(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const std::size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool has_shorter_form = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool is_surrogate = first == 0xed && byte(1) > 0x9f;
  const bool is_beyond_unicode = first == 0xf4 && byte(1) > 0x8f;
  return has_shorter_form || is_surrogate || is_beyond_unicode ? 0 : size;
}

// Puts a backslash before each character of `text` that is in `special`, and writes newlines as \n. Prometheus refuses
// a whole page for one byte that is not UTF-8, so U+FFFD stands for such a byte.
std::string escaped(std::string_view text, std::string_view special) {
  std::string made;
  while (!text.empty()) {
    const std::size_t size = character_size(text);
    if (size == 0) {
      made += "\xef\xbf\xbd";
    } else if (text.front() == '\n') {
      made += "\\n";
    } else {
      if (special.find(text.front()) != std::string_view::npos) made += '\\';
      made += text.substr(0, size);
    }
    text.remove_prefix(std::max<std::size_t>(size, 1));
  }
  return made;
}

}  // namespace

std::string metrics::label(std::string_view name, std::string_view value) {
  return fmt::format("{}=\"{}\"", name, escaped(value, "\"\\"));
}

void metrics::add(std::string_view type, std::string_view name, std::string_view help, const std::string& labels,
                  std::uint64_t value) {
  auto found = std::find_if(families_.begin(), families_.end(), [&](const family& each) { return each.name == name; });
  if (found == families_.end()) {
    families_.push_back(
        {std::string(name), fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, escaped(help, "\\"), type), {}});
    found = families_.end() - 1;
  }
  found->samples +=
      labels.empty() ? fmt::format("{} {}\n", name, value) : fmt::format("{}{{{}}} {}\n", name, labels, value);
}

void metrics::counter(std::string_view name, std::string_view help, const std::string& labels, std::uint64_t value) {
  add("counter", name, help, labels, value);
}

void metrics::gauge(std::string_view name, std::string_view help, const std::string& labels, std::uint64_t value) {
  add("gauge", name, help, labels, value);
}

std::string metrics::text() const {
  std::string all;
  for (const family& each : families_) all += each.head + each.samples;
  return all;
}

void add_to(metrics& all, const executor& what, std::string_view name) {
  const executor_counters counted = what.statistics();
  const std::string labels = metrics::label("executor", name);
  all.counter("weft_executor_turns_total", "Turns of the loop.", labels, counted.turns);
  all.counter("weft_executor_sleeps_total", "Times that the loop waited in the kernel.", labels, counted.sleeps);
  all.counter("weft_executor_resumed_total", "Coroutines resumed.", labels, counted.resumed);
  all.counter("weft_executor_tasks_total", "Tasks started side by side.", labels, counted.tasks);
  all.counter("weft_executor_mail_total", "Pieces of work from other threads.", labels, counted.mail);
  all.counter("weft_executor_stalls_total", "Turns longer than the stall limit.", labels, counted.stalls);
  all.counter("weft_executor_kernel_entries_total", "System calls of the event driver.", labels, what.kernel_entries());
}

void add_to(metrics& all, const executor_group& what, std::string_view name) {
  for (std::size_t i = 0; i < what.size(); ++i) add_to(all, what[i], fmt::format("{} {}", name, i));
}

}  // namespace weft
