// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/io/signal.hpp>
#include <weft/runtime/system/clock.hpp>
#include <weft/runtime/task.hpp>

#include <string>

namespace weft {

/// Records a trace (trace_file) of a running program each time that one of the signals comes, until the task is
/// stopped.
///
///     signal_set on_demand({SIGUSR2});                               // before other threads start
///     tasks.spawn(record_traces(on_demand, "/var/log/server.json", 10s));
///
/// A recording takes `length`; a further signal, or a stop, ends it at once. The file appears at `path` when it is
/// whole, in place of the file of the recording before; until then it is called PATH.part. The folder should be the
/// program's own, because anyone who may write there can choose which file is written. If a recording fails, or another
/// trace_file is open, the task sends a warning (report.hpp) and waits for the next signal. `signals` must outlive the
/// task, and no other task may wait for it.
task<> record_traces(signal_set& signals, std::string path, duration length);

}  // namespace weft
