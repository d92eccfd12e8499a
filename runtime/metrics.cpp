// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/executor.hpp>
#include <weft/runtime/executor_group.hpp>
#include <weft/runtime/metrics.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace weft {

std::string metrics::label(std::string_view name, std::string_view value) {
  std::string text = fmt::format("{}=\"", name);
  for (const char c : value) {
    if (c == '"' || c == '\\') text.push_back('\\');
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text + '"';
}

void metrics::add(std::string_view type, std::string_view name, std::string_view help, const std::string& labels,
                  std::uint64_t value) {
  auto found = std::find_if(families_.begin(), families_.end(), [&](const family& each) { return each.name == name; });
  if (found == families_.end()) {
    families_.push_back({std::string(name), fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type), {}});
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
  all.counter("weft_executor_stalls_total", "Turns longer than the limit.", labels, counted.stalls);
  all.counter("weft_executor_kernel_entries_total", "System calls of the event driver.", labels, what.kernel_entries());
}

void add_to(metrics& all, const executor_group& what, std::string_view name) {
  for (std::size_t i = 0; i < what.size(); ++i) add_to(all, what[i], fmt::format("{} {}", name, i));
}

}  // namespace weft
