// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace weft {

/// A trace in the JSON that chrome://tracing and ui.perfetto.dev open. It records from its construction to close().
///
///     trace_file trace("copy.json");
///     ex.run(main_task());
///     trace.close();
///
/// Executors stand under "executors", each with what its thread was busy with; tasks, operations, registrations and
/// what becomes of connections stand under their own names. It may begin and end while executors run: what was under
/// way at its beginning is not shown, and what is under way at its end is shown without one.
class trace_file {
 public:
  /// Creates the file, or empties it. From any thread. Throws weft::error: errc::busy while there is another trace_file
  /// that has not been closed.
  explicit trace_file(const std::string& path);
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;
  /// Closes the file; an error is lost then.
  ~trace_file();

  /// Ends the recording and writes what is left. From any thread. Throws weft::error if the file could not be written.
  void close();

 private:
  bool open_ = true;
};

}  // namespace weft
