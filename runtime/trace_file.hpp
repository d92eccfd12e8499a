// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace weft {

/// A trace in the JSON that chrome://tracing and ui.perfetto.dev open. It records from its construction to close() or
/// its destruction.
///
///     trace_file trace("copy.json");
///     ex.run(main_task());
///     trace.close();
///
/// Executors are under "executors", each with the tasks that its thread has run; tasks, operations, registrations and
/// connections are groups of their own. A trace may begin and end while executors run: spans under way at its beginning
/// are left out, and spans under way at its end are shown without an end.
class trace_file {
 public:
  /// Creates the file, or empties it. From any thread. Throws weft::error, with errc::busy while another trace_file is
  /// open.
  explicit trace_file(const std::string& path);
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;
  /// Closes the file, if close() was not called; errors are lost then.
  ~trace_file();

  /// Ends the recording and writes what is left. From any thread. Throws weft::error if the file could not be written.
  void close();

 private:
  bool open_ = true;
};

}  // namespace weft
