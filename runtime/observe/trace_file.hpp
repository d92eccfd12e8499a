// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/observe/trace.hpp>

#include <memory>
#include <string>

namespace weft {

/// A trace in the JSON that chrome://tracing and ui.perfetto.dev open. It records from its construction to close().
///
///     trace_file trace("copy.json");
///     executor.run(main_task());
///     trace.close();
///
/// Executors stand under "executors", each with what its thread was busy with; tasks, operations and registrations
/// stand under their own names. One trace at a time.
class trace_file final : public trace_sink {
 public:
  /// Creates the file, or empties it. Throws weft::error.
  explicit trace_file(const std::string& path);
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;
  /// Closes the file; an error is lost then.
  ~trace_file();

  /// Ends the recording and writes what is left, once the executors have returned from run(). Throws weft::error if the
  /// file could not be written.
  void close();

  void began(trace_track track, const void* item, std::string_view name) noexcept override;
  void ended(trace_track track, const void* item) noexcept override;
  void ran(std::string_view name, time_point start, time_point end) noexcept override;

 private:
  class writer;
  std::unique_ptr<writer> writer_;  // null: closed
};

}  // namespace weft
