// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/clock.hpp>

#include <atomic>
#include <cstdint>
#include <string_view>

namespace weft {

/// What a trace shows on tracks of their own.
enum class trace_track : std::uint8_t {
  tasks,          ///< from their start, in a scope for instance, to their end
  operations,     ///< what tasks are suspended on: a receive, a write, a sleep
  registrations,  ///< of memory, at work
};

/// Somebody who looks on while executors run: trace_file, or a program's own.
///
/// Called from the threads of all executors and workers, and must not throw. Times are the steady clock's.
class trace_sink {
 public:
  /// Something begins now; `item` names it until it has ended.
  virtual void began(trace_track track, const void* item, std::string_view name) noexcept = 0;
  virtual void ended(trace_track track, const void* item) noexcept = 0;
  /// The calling thread was busy with a task from `start` to `end`.
  virtual void ran(std::string_view name, time_point start, time_point end) noexcept = 0;

 protected:
  ~trace_sink() = default;  // nobody owns a sink through this
};

namespace detail {

inline constinit std::atomic<trace_sink*> active_trace{nullptr};

/// Null, as a rule. Whoever has something to tell asks here first: a load and a branch.
[[nodiscard]] inline trace_sink* current_trace() noexcept { return active_trace.load(std::memory_order_acquire); }

}  // namespace detail

/// Has `sink` told of everything that executors and workers of this process do from now on; null ends that.
/// The sink stays until no executor runs and no worker works that may have seen it.
inline void set_trace(trace_sink* sink) noexcept { detail::active_trace.store(sink, std::memory_order_release); }

}  // namespace weft
