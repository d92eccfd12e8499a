// SPDX-License-Identifier: Apache-2.0
#include <weft/net/rails/news.hpp>
#include <weft/net/rails/rail.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/trace.hpp>

#include <fmt/core.h>

#include <chrono>
#include <exception>

namespace weft::net::rails {
namespace {

using namespace std::chrono_literals;

constexpr duration first_pause = 100ms;
// The pause before delayed lines are tried again.
constexpr duration next_pause = 1s;

void report_change(std::string_view text) noexcept { send_report({.kind = report_kind::change, .text = text}); }

std::string length_of(duration time) {
  if (time < 1s) return fmt::format("{} ms", std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
  return fmt::format("{:.1f} s", std::chrono::duration<double>(time).count());
}

}  // namespace

// ---- what happens ----

void news::lost(const rail& which) noexcept {
  note& its = notes_[which.number()];
  its.away_since = of_.home().now();
  ++its.losses;
  trace([&] { return fmt::format("{} is lost: {}", name_of(which), which.health().why()); });
  note_change(which);
}

void news::refused(const rail& which) noexcept {
  note& its = notes_[which.number()];
  trace([&] { return fmt::format("{} cannot be had: {}", name_of(which), which.health().why()); });
  if (its.told_away || its.is_due || which.health().opened.get() != 0) return;
  its.away_since = of_.home().now();
  note_change(which);
}

void news::came(const rail& which) noexcept {
  note& its = notes_[which.number()];
  its.back_since = of_.home().now();
  const bool is_back = which.health().opened.get() > 1;
  trace([&] { return fmt::format("{} {}", name_of(which), is_back ? "is back" : "has come"); });
  if (its.told_away) note_change(which);
}

void news::none_left(std::chrono::milliseconds within) const noexcept {
  trace([&] { return fmt::format("no rail is left: waiting for one for {} ms at most", within.count()); });
}

void news::goes_on(duration after) const noexcept {
  trace([&] { return fmt::format("the connection goes on after {} without rails", length_of(after)); });
}

void news::fenced(const rail& which) const noexcept {
  trace([&] { return fmt::format("rail {} is fenced: nothing that went over it can arrive", which.number()); });
}

void news::ended(const error& why, bool waited) noexcept {
  if (over_) return;
  stop();
  const auto words = [&] { return fmt::format("the connection to {} has ended: {}", peer_, why.what()); };
  trace(words);
  if (!waited || !all_.may_write_line(of_.home().now())) return;
  try {
    report_change(words());
  } catch (const std::exception&) {  // no memory for the text: the connection's operations report the end
  }
}

void news::stop() noexcept {
  over_ = true;
  if (armed()) of_.home().disarm(*this);
}

// ---- lines ----

void news::note_change(const rail& which) noexcept {
  notes_[which.number()].is_due = true;
  wake(first_pause);
}

// Arms the timer. If there is no memory for it, the line waits for the next change; the statistics show this one.
void news::wake(duration pause) noexcept {
  if (over_ || armed()) return;
  static_cast<void>(of_.home().try_arm(*this, later(of_.home().now(), pause)));
}

void news::expired() noexcept {
  const time_point now = of_.home().now();
  bool waits = false;
  for (std::size_t i = 0; i < of_.rail_count(); ++i) {
    note& its = notes_[i];
    if (!its.is_due) continue;
    if (!its.lines.has(now) || !all_.may_write_line(now)) {
      waits = true;
      continue;
    }
    static_cast<void>(its.lines.take(now));
    its.is_due = false;
    const rail& which = of_.rail_at(i);
    try {
      report_change(sentence(which, its));
    } catch (const std::exception&) {  // no memory for the text
    }
    its.told_away = !which.is_open();
    its.losses = 0;
  }
  if (waits) wake(next_pause);
}

std::string news::sentence(const rail& which, const note& its) const {
  const std::string name = fmt::format("{} of the connection to {}", name_of(which), peer_);
  const std::string why = which.health().why();
  const std::string often = its.losses > 1 ? fmt::format(" {} times", its.losses) : std::string();
  const auto back_after = length_of(its.back_since - its.away_since);
  if (!which.is_open()) {
    if (its.losses == 0) return fmt::format("{} cannot be had: {}{}", name, why, what_carries_on());
    if (its.losses == 1 && !its.told_away) return fmt::format("{} is lost: {}{}", name, why, what_carries_on());
    return fmt::format("{} was lost{} and is away: {}{}", name, often, why, what_carries_on());
  }
  if (!its.told_away) return fmt::format("{} was lost{} ({}), and is back after {}", name, often, why, back_after);
  if (which.health().lost.get() == 0) return fmt::format("{} has come after {}", name, back_after);
  if (its.losses == 0) return fmt::format("{} is back after {}", name, back_after);
  return fmt::format("{} is back after {}; meanwhile it was lost{} ({})", name, back_after,
                     often.empty() ? " once more" : often, why);
}

std::string news::what_carries_on() const {
  std::string fabrics;
  for (std::size_t i = 0; i < of_.rail_count(); ++i) {
    const rail& each = of_.rail_at(i);
    if (each.is_open()) fabrics += (fabrics.empty() ? "; going on over " : ", ") + each.health().fabric();
  }
  return fabrics.empty() ? "; no rail is left, and the connection waits for one" : fabrics;
}

std::string news::name_of(const rail& which) const {
  return fmt::format("rail {} ({})", which.number(), which.health().way());
}

template <class Words>
void news::trace(const Words& words) const noexcept {
  trace_sink* const sink = weft::detail::current_trace();
  if (sink == nullptr) return;
  try {
    sink->happened(trace_track::connections, &of_, words());
  } catch (const std::exception&) {  // no memory for the text: then the trace lacks it
  }
}

}  // namespace weft::net::rails
