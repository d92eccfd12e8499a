// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <cstdint>
#include <exception>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>

namespace weft {

/// The kind of event that a report is about.
enum class report_kind : std::uint8_t {
  failure,  ///< a task of a scope with on_failure::report, or a peer's set-up, has failed
  stall,    ///< a turn of an executor took longer than executor_options::stall_limit
  warning,  ///< something will go wrong, or be slow, unless somebody acts: the text says what
  dump,     ///< the lines of executor::dump(), at a signal's request (executor_options::dump_on_signal)
  fatal,    ///< going on would corrupt memory: std::terminate() is called as soon as the handler returns
  change,   ///< a failure or a recovery that the program's connections cope with: a rail is lost, or is back
};

/// A turn of an executor's loop that took too long: all other tasks of the executor waited for it.
struct stall {
  duration turn;     ///< how long it took, from the mailbox to the kernel's completions
  duration longest;  ///< the longest that one task ran at a stretch
};

/// An event for whoever runs the program, reported because no caller learns of it. The objects that it refers to live
/// until the handler returns.
struct report {
  report_kind kind = report_kind::warning;  ///< what kind of event it is
  /// The event, without the task: the exception's what(), a sentence, or the lines of a dump.
  std::string_view text{};
  /// The name that spawn(), or weft itself, has given to the task that the event concerns; empty if the task has none,
  /// or there is no task.
  std::string_view task{};
  /// The name of the task's scope, given to with_scope(), or empty.
  std::string_view scope{};
  /// The function of the task; line() is 0 if there is no task. For a stall, the function that ran longest: if
  /// stall::longest is short beside stall::turn, the time went to pollers, timers, completions, or many short runs.
  std::source_location origin{};
  std::exception_ptr failure{};        ///< the exception of a failure; else null
  std::optional<weft::stall> stall{};  ///< the times of a stall; else empty
};

/// One sentence, or the lines of a dump, without a newline at the end: "task [peers] first: serve (server.cpp:12)
/// failed: receive from 10.0.0.7:7471 over iwarp: the peer vanished without closing". Throws std::bad_alloc.
[[nodiscard]] std::string to_string(const report& what);

/// The receiver of reports: a server's log, for instance.
///
/// Called on the thread of the event, as a rule an executor's in the middle of a turn, and on several threads at the
/// same time. weft holds no lock meanwhile, except perhaps for a fatal report. The handler may allocate, take locks of
/// its own, write to a file, call executor::post(), and cause further reports; the executor's tasks wait for it. It
/// must not throw, and it can neither await nor call set_report_handler(), which would wait for the handler itself.
class report_handler {
 public:
  /// Called with each report, on the thread of the event.
  virtual void handle(const report& what) noexcept = 0;

 protected:
  ~report_handler() = default;  // weft never owns it
};

/// Sends all reports of this process to `handler` from now on, except failures that a scope passes to a listener of its
/// own (with_scope()). Null restores the default, which writes "weft: " and to_string() as one line, or the lines of a
/// dump, to the standard error stream, at most line_limit::lines_a_second failures a second; a line before the next
/// failure says how many were left out. From any thread, but not from inside a handler. The environment variable
/// WEFT_LOG says which kinds the default writes: `all`, `none`, or for instance `failure,warning`; it is read once, and
/// fatal reports are always written. Returns the former handler, which may be destroyed: no thread is inside it any
/// more.
report_handler* set_report_handler(report_handler* handler) noexcept;

/// Passes a report, of weft or of the program, to the handler. From any thread.
void send_report(const report& what) noexcept;

}  // namespace weft
