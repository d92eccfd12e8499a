// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/record_traces.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/trace_file.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>

namespace weft {
namespace {

// Returns at a signal or when `length` has passed; throws errc::canceled at a stop.
task<> wait_for_end(signal_set& signals, duration length) {
  try {
    co_await with_timeout(length, signals.next());
  } catch (const error& why) {
    if (why.code() != errc::timed_out) throw;
  }
}

void finish(trace_file& trace, const std::string& unfinished, const std::string& path) {
  trace.close();
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
    throw system_error(errno, fmt::format("rename the trace {} to {}", unfinished, path));
  }
}

task<> record_one(signal_set& signals, const std::string& path, duration length) {
  const std::string unfinished = path + ".part";
  // Removes the rest of an earlier recording, or a link that somebody has put there, which must not be followed.
  if (::unlink(unfinished.c_str()) != 0 && errno != ENOENT) {
    throw system_error(errno, fmt::format("remove {}", unfinished));
  }
  trace_file trace(unfinished);
  std::exception_ptr stopped;
  try {
    co_await wait_for_end(signals, length);
  } catch (const error&) {
    stopped = std::current_exception();
  }
  finish(trace, unfinished, path);
  if (stopped) std::rethrow_exception(stopped);
}

void warn(const std::exception& why) noexcept {
  report what;
  what.kind = report_kind::warning;
  what.text = why.what();
  send_report(what);
}

}  // namespace

task<> record_traces(signal_set& signals, std::string path, duration length) {
  for (;;) {
    co_await signals.next();
    try {
      co_await record_one(signals, path, length);
    } catch (const error& why) {
      if (why.code() == errc::canceled) throw;
      warn(why);
    } catch (const std::bad_alloc& why) {
      warn(why);
    }
  }
}

}  // namespace weft
