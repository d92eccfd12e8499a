// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/task_names.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/system/live_number.hpp>
#include <weft/runtime/task.hpp>

namespace weft::detail {

/// Times one turn and its tasks, for stall reports and traces.
class turn_watch {
 public:
  /// Begins to time a turn. The destructor reports the turn, and counts it in `stalls`, if it took longer than `limit`,
  /// unless `limit` is zero.
  turn_watch(clock& time, duration limit, live_number& stalls) noexcept
      : clock_(time), limit_(limit), stalls_(stalls), start_(time.now()) {}
  turn_watch(const turn_watch&) = delete;
  turn_watch& operator=(const turn_watch&) = delete;
  ~turn_watch();  // NOLINT(bugprone-exception-escape): see tell()

  /// Resumes `item`, times it, and tells the trace if there is one. Not inlined, because otherwise every turn of the
  /// loop would reserve stack space for the local variables of resume().
  [[gnu::noinline]] void resume(promise_base& item) noexcept;

 private:
  void tell() const noexcept;  // NOLINT(bugprone-exception-escape): see there

  clock& clock_;
  const duration limit_;
  live_number& stalls_;
  const time_point start_;
  stall worst_{};
  task_names worst_task_;
};

}  // namespace weft::detail
