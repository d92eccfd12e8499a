// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "report.hpp"
#include "units.hpp"

namespace perf {
namespace {

// In the picture's own units, which a browser takes for pixels.
constexpr double width = 860;
constexpr double head_height = 64;
constexpr double chart_height = 400;
constexpr double left_margin = 78;
constexpr double right_margin = 168;  // for the legend
constexpr double top_margin = 36;
constexpr double bottom_margin = 58;
constexpr double plot_width = width - left_margin - right_margin;
constexpr double plot_height = chart_height - top_margin - bottom_margin;
constexpr double legend_line = 19;

// Told apart by people who see colours differently as well (Okabe and Ito's palette, without its yellow).
constexpr std::array<std::string_view, 6> colours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"};

struct point {
  double size;
  double value;
};

struct line {
  std::string name;
  std::string_view colour;
  std::string_view dashes;  // empty: a solid line
  std::vector<point> points;
};

struct chart {
  std::string title;
  std::string unit;
  std::vector<line> lines;
};

/// From values to places, logarithmically.
struct axis {
  double first;
  double last;
  double begin;  // where `first` is
  double end;

  [[nodiscard]] double at(double value) const {
    return begin + (std::log(value) - std::log(first)) / (std::log(last) - std::log(first)) * (end - begin);
  }
};

std::string escape(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '&':
        safe += "&amp;";
        break;
      default:
        // Control characters have no place in XML 1.0, and what is no ASCII may be no UTF-8 either.
        safe += c >= 0x20 && c < 0x7f ? c : '?';
    }
  }
  return safe;
}

std::string_view colour_of(const operation* what) {
  const auto index = static_cast<std::size_t>(what - all_operations().data());
  return colours[index % colours.size()];
}

template <class Value>
void add_line(chart& to, const report& all, const operation& what, quantity measures, std::string name,
              std::string_view dashes, const Value& value_of) {
  line one{.name = std::move(name), .colour = colour_of(&what), .dashes = dashes, .points = {}};
  for (const outcome& each : all.outcomes) {
    if (each.what != &what || each.measures != measures) continue;
    const double value = value_of(each);
    if (value > 0) one.points.push_back({static_cast<double>(each.size), value});
  }
  std::ranges::sort(one.points, {}, &point::size);
  if (!one.points.empty()) to.lines.push_back(std::move(one));
}

std::vector<chart> charts_of(const report& all) {
  chart latency{.title = "Latency, one at a time", .unit = "microseconds", .lines = {}};
  chart bandwidth{.title = "Bandwidth", .unit = "GB/s", .lines = {}};
  for (const outcome& one : all.outcomes) {
    if (one.measures == quantity::bandwidth) bandwidth.title = fmt::format("Bandwidth, {} in flight", one.depth);
  }
  for (const operation& what : all_operations()) {
    const std::string name(what.name);
    const auto micro = [](double nanoseconds) { return nanoseconds / 1000; };
    add_line(latency, all, what, quantity::latency, name + " p50", "",
             [&](const outcome& one) { return micro(one.latency.p50); });
    add_line(latency, all, what, quantity::latency, name + " p99", "6 4",
             [&](const outcome& one) { return micro(one.latency.p99); });
    add_line(latency, all, what, quantity::latency, name + " p99.9", "1.5 4",
             [&](const outcome& one) { return micro(one.latency.p999); });
    add_line(bandwidth, all, what, quantity::bandwidth, name, "",
             [](const outcome& one) { return one.bytes_per_second() / 1e9; });
  }
  std::vector<chart> charts;
  for (chart* const one : {&latency, &bandwidth}) {
    if (!one->lines.empty()) charts.push_back(std::move(*one));
  }
  return charts;
}

class painter {
 public:
  std::string paint(const report& all);

 private:
  template <class... Arguments>
  void add(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    svg_ += fmt::format(text, std::forward<Arguments>(arguments)...);
  }
  void head(const report& all, double height);
  void paint(const chart& one, double top);
  void paint_sizes(const axis& x, double top);
  void paint_values(const axis& y, std::string_view unit);
  void paint(const line& one, const axis& x, const axis& y);
  void legend(const chart& one, double top);

  std::string svg_;
};

void painter::head(const report& all, double height) {
  add(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}")", width, height);
  add(R"( font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222">{})", '\n');
  add(R"(<rect width="{}" height="{}" fill="#fff"/>{})", width, height, '\n');
  const outcome& first = all.outcomes.front();
  add(R"(<text x="{}" y="28" font-size="18" font-weight="bold">weft-perf: {} over {}</text>{})", left_margin,
      escape(all.address), escape(first.fabric), '\n');
  add(R"(<text x="{}" y="48" fill="#666">{}</text>{})", left_margin, escape(circumstances(all, first)), '\n');
}

// Whole powers on both ends, so that no point lies on the frame's edge by accident and a single size has an axis too.
axis axis_over(const chart& one, double point::*what, double base, double begin, double end) {
  double smallest = one.lines.front().points.front().*what;
  double largest = smallest;
  for (const line& each : one.lines) {
    for (const point& at : each.points) {
      smallest = std::min(smallest, at.*what);
      largest = std::max(largest, at.*what);
    }
  }
  const double first = std::floor(std::log(smallest) / std::log(base) + 1e-9);
  const double last = std::ceil(std::log(largest) / std::log(base) - 1e-9);
  const double room = first == last ? 1 : 0;
  return {.first = std::pow(base, first - room), .last = std::pow(base, last + room), .begin = begin, .end = end};
}

void painter::paint_sizes(const axis& x, double top) {
  const double bottom = top + top_margin + plot_height;
  const auto powers = static_cast<unsigned>(std::lround(std::log2(x.last / x.first)));
  const unsigned step = powers / 12 + 1;  // labels that do not run into one another
  for (unsigned i = 0; i <= powers; ++i) {
    const double size = x.first * std::exp2(i);
    const double place = x.at(size);
    add(R"(<line x1="{0:.1f}" y1="{1:.1f}" x2="{0:.1f}" y2="{2:.1f}" stroke="#eee"/>{3})", place, top + top_margin,
        bottom, '\n');
    if (i % step != 0) continue;
    const std::string label = size < 1 ? "" : format_size(static_cast<std::uint64_t>(size));
    add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>{})", place, bottom + 19, label, '\n');
  }
  add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="middle" fill="#666">size in bytes</text>{})",
      left_margin + plot_width / 2, bottom + 42, '\n');
}

void painter::paint_values(const axis& y, std::string_view unit) {
  for (double power = y.first; power <= y.last * 1.001; power *= 10) {
    for (int digit = 1; digit < 10; ++digit) {
      const double value = power * digit;
      if (value > y.last * 1.001) break;
      const double place = y.at(value);
      add(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}"/>{})", left_margin, place,
          left_margin + plot_width, place, digit == 1 ? "#ccc" : "#eee", '\n');
      if (digit != 1) continue;
      add(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{:g}</text>{})", left_margin - 8, place + 4.5, value, '\n');
    }
  }
  const double middle = (y.begin + y.end) / 2;
  add(R"svg(<text transform="translate(20 {:.1f}) rotate(-90)" text-anchor="middle" fill="#666">{}</text>{})svg",
      middle, unit, '\n');
}

void painter::paint(const line& one, const axis& x, const axis& y) {
  add(R"(<polyline fill="none" stroke="{}" stroke-width="2" stroke-linejoin="round")", one.colour);
  if (!one.dashes.empty()) add(R"( stroke-dasharray="{}" stroke-linecap="round")", one.dashes);
  add(" points=\"");
  for (const point& at : one.points) add("{:.1f},{:.1f} ", x.at(at.size), y.at(at.value));
  add("\"/>\n");
  for (const point& at : one.points) {
    add(R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="{}"><title>{}, {} bytes: {}</title></circle>{})", x.at(at.size),
        y.at(at.value), one.dashes.empty() ? 3.2 : 2.2, one.colour, one.name, at.size, format_figure(at.value), '\n');
  }
}

void painter::legend(const chart& one, double top) {
  double y = top + top_margin + 10;
  const double x = left_margin + plot_width + 16;
  for (const line& each : one.lines) {
    add(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="2")", x, y, x + 30, y,
        each.colour);
    if (!each.dashes.empty()) add(R"( stroke-dasharray="{}" stroke-linecap="round")", each.dashes);
    add(R"(/><text x="{:.1f}" y="{:.1f}">{}</text>{})", x + 38, y + 4.5, each.name, '\n');
    y += legend_line;
  }
}

void painter::paint(const chart& one, double top) {
  const double bottom = top + top_margin + plot_height;
  const axis x = axis_over(one, &point::size, 2, left_margin, left_margin + plot_width);
  const axis y = axis_over(one, &point::value, 10, bottom, top + top_margin);
  add(R"(<text x="{}" y="{:.1f}" font-size="15" font-weight="bold">{}</text>{})", left_margin, top + 22, one.title,
      '\n');
  paint_sizes(x, top);
  paint_values(y, one.unit);
  add(R"(<rect x="{}" y="{:.1f}" width="{}" height="{}" fill="none" stroke="#888"/>{})", left_margin, top + top_margin,
      plot_width, plot_height, '\n');
  for (const line& each : one.lines) paint(each, x, y);
  legend(one, top);
}

std::string painter::paint(const report& all) {
  const std::vector<chart> charts = charts_of(all);
  head(all, head_height + chart_height * static_cast<double>(charts.size()));
  double top = head_height;
  for (const chart& one : charts) {
    paint(one, top);
    top += chart_height;
  }
  add("</svg>\n");
  return std::move(svg_);
}

}  // namespace

std::string to_svg(const report& all) { return painter().paint(all); }

}  // namespace perf
