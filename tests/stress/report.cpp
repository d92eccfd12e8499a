// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/core.h>

#include "duel.hpp"
#include <nlohmann/json.hpp>

namespace weft::stress {
namespace {

constexpr double micro = 1000;  // nanoseconds
constexpr double mebi = 1 << 20;

part sum_of(const report& all) {
  part sum;
  for (const part& one : all.parts) {
    sum.seconds += one.seconds;
    sum.runs += one.runs;
    sum.operations += one.operations;
    sum.failures += one.failures;
    sum.stopped += one.stopped;
    sum.connections += one.connections;
    sum.faults += one.faults;
    sum.bytes += one.bytes;
  }
  return sum;
}

std::string line_of(const part& one, const std::string& name) {
  std::string line =
      fmt::format("{:32}{:7.1f}{:9}{:12}{:10}{:9}{:9}{:8}{:10.1f}", name, one.seconds, one.runs, one.operations,
                  one.failures, one.stopped, one.connections, one.faults, static_cast<double>(one.bytes) / mebi);
  if (!one.times.empty()) {
    line += fmt::format("{:9.0f}{:9.0f}{:9.0f}", percentile(one.times, 50) / micro, percentile(one.times, 99) / micro,
                        static_cast<double>(one.most_resident_bytes) / mebi);
  }
  return line + "\n";
}

std::string verdict_on(const report& all) {
  if (!all.failures.empty()) return fmt::format("{} failures\n", all.failures.size());
  if (all.interrupted) return "Interrupted. Until then, nothing was found to be wrong.\n";
  return "Nothing lost: every operation that has begun has ended once, every byte was right, nothing is left.\n";
}

// ---- the picture ----

constexpr double width = 900;
constexpr double left_margin = 80;
constexpr double plot_width = width - left_margin - 30;
constexpr double chart_height = 200;
constexpr double plot_height = 140;

struct line {
  const char* colour;
  double sample::*value;
};

double largest_of(const report& all, const std::vector<line>& lines) {
  double most = 0;
  for (const sample& one : all.samples) {
    for (const line& each : lines) most = std::max(most, one.*each.value);
  }
  return most > 0 ? most : 1;
}

std::string paint(const report& all, const char* title, double unit, const std::vector<line>& lines, double top) {
  const double most = largest_of(all, lines);
  const double bottom = top + 30 + plot_height;
  const double last = std::max(all.seconds, 1.0);
  std::string svg = fmt::format(
      R"(<text x="{}" y="{}" font-weight="bold">{}</text><text x="{}" y="{}" text-anchor="end">{:.4g}</text>)",
      left_margin, top + 20, title, left_margin - 6, top + 40, most / unit);
  svg += fmt::format(R"(<text x="{}" y="{}" text-anchor="end">0</text>)", left_margin - 6, bottom);
  svg += fmt::format(R"(<text x="{}" y="{}" text-anchor="end">{:.0f} s</text>)", left_margin + plot_width, bottom + 16,
                     last);
  svg += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" fill="none" stroke="#888"/>)", left_margin, top + 30,
                     plot_width, plot_height);
  svg += '\n';
  for (const line& each : lines) {
    svg += fmt::format(R"(<polyline fill="none" stroke="{}" stroke-width="1.5" points=")", each.colour);
    for (const sample& one : all.samples) {
      svg += fmt::format("{:.1f},{:.1f} ", left_margin + one.at / last * plot_width,
                         bottom - one.*each.value / most * plot_height);
    }
    svg += "\"/>\n";
  }
  return svg;
}

// Where one kind of work follows another; a browser shows the name to whoever points there.
std::string mark_changes(const report& all, double height) {
  const double last = std::max(all.seconds, 1.0);
  std::string svg;
  const std::string* before = nullptr;
  for (const sample& one : all.samples) {
    if (before != nullptr && *before == one.what) continue;
    before = &one.what;
    const double x = left_margin + one.at / last * plot_width;
    svg += fmt::format(R"(<path d="M{0:.1f},30V{1}" stroke="#bbb" stroke-width="2"><title>{2}</title></path>)", x,
                       height, one.what);
    svg += '\n';
  }
  return svg;
}

}  // namespace

std::string to_text(const report& all) {
  std::string text =
      fmt::format("{:32}{:>7}{:>9}{:>12}{:>10}{:>9}{:>9}{:>8}{:>10}{:>9}{:>9}{:>9}\n", "", "s", "runs", "operations",
                  "by fault", "stopped", "connect.", "faults", "MiB", "p50 us", "p99 us", "RSS MiB");
  for (const part& one : all.parts) text += line_of(one, one.name);
  text += line_of(sum_of(all), "all");
  for (const std::string& one : all.left_out) text += "left out: " + one + "\n";
  for (const std::string& one : all.failures) text += "FAILED: " + one + "\n";
  return text + verdict_on(all);
}

std::string to_json(const report& all) {
  nlohmann::json made;
  made["command"] = all.command;
  made["seconds"] = all.seconds;
  made["passed"] = all.failures.empty();
  made["interrupted"] = all.interrupted;
  made["failures"] = all.failures;
  made["left_out"] = all.left_out;
  made["parts"] = made["samples"] = nlohmann::json::array();
  for (const part& one : all.parts) {
    nlohmann::json item{{"name", one.name},
                        {"seconds", one.seconds},
                        {"runs", one.runs},
                        {"operations", one.operations},
                        {"ended_by_faults", one.failures},
                        {"stopped", one.stopped},
                        {"connections", one.connections},
                        {"faults", one.faults},
                        {"checked_bytes", one.bytes},
                        {"operations_per_second", static_cast<double>(one.operations) / std::max(one.seconds, 1e-3)}};
    if (!one.times.empty()) {
      for (const double percent : {50.0, 90.0, 99.0, 99.9}) {
        item["latency_ns"][fmt::format("p{:g}", percent)] = percentile(one.times, percent);
      }
      item["most_resident_bytes"] = one.most_resident_bytes;
    }
    made["parts"].push_back(std::move(item));
  }
  for (const sample& one : all.samples) {
    made["samples"].push_back({{"at", one.at},
                               {"what", one.what},
                               {"operations_per_second", one.rate},
                               {"p50_ns", one.p50},
                               {"p99_ns", one.p99},
                               {"resident_bytes", one.resident_bytes}});
  }
  return made.dump(1) + "\n";
}

std::string to_svg(const report& all) {
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" )"
      R"(font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222"><rect width="{0}" height="{1}" )"
      R"(fill="#fff"/>)",
      width, 3 * chart_height + 20);
  svg += '\n';
  svg += mark_changes(all, 2 * chart_height + 30 + plot_height);
  svg += paint(all, "Operations per second", 1, {{"#0072b2", &sample::rate}}, 0);
  svg += paint(all, "Latency in microseconds: p50, p99", micro, {{"#009e73", &sample::p50}, {"#d55e00", &sample::p99}},
               chart_height);
  svg += paint(all, "Resident memory in MiB", mebi, {{"#cc79a7", &sample::resident_bytes}}, 2 * chart_height);
  return svg + "</svg>\n";
}

}  // namespace weft::stress
