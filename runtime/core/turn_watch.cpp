// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/turn_watch.hpp>
#include <weft/runtime/task_name.hpp>
#include <weft/runtime/trace.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <source_location>

namespace weft::detail {
namespace {

void trace_run(trace_sink& sink, std::source_location origin, time_point start, time_point end) noexcept {
  try {
    sink.ran(function_name(origin), start, end);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

turn_watch::~turn_watch() {  // NOLINT(bugprone-exception-escape): see tell()
  if (limit_ == duration::zero()) return;
  worst_.turn = clock_.now() - start_;
  if (worst_.turn > limit_) tell();
}

void turn_watch::resume(promise_base& item) noexcept {
  const task_names names = names_of(item);  // taken now, because the coroutine may be gone after resume()
  const time_point start = clock_.now();
  item.handle().resume();
  const time_point end = clock_.now();
  if (trace_sink* const sink = current_trace()) trace_run(*sink, names.origin, start, end);
  if (end - start <= worst_.longest) return;
  worst_.longest = end - start;
  worst_task_ = names;
}

// format_to_n() does not throw: the format is a correct constant, and the text has its memory already.
// NOLINTNEXTLINE(bugprone-exception-escape)
void turn_watch::tell() const noexcept {
  stalls_.add(1);
  const auto milliseconds = [](duration time) { return std::chrono::duration<double, std::milli>(time).count(); };
  std::array<char, 128> text;
  const auto end =
      fmt::format_to_n(text.begin(), text.size(), "a turn took {:.1f} ms; one task ran for {:.1f} ms of it",
                       milliseconds(worst_.turn), milliseconds(worst_.longest));
  report what;
  what.kind = report_kind::stall;
  what.text = {text.data(), std::min(end.size, text.size())};
  if (worst_task_.task != nullptr) what.task = worst_task_.task;
  what.scope = worst_task_.scope;
  what.origin = worst_task_.origin;
  what.stall = worst_;
  send_report(what);
}

}  // namespace weft::detail
