// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <atomic>
#include <cstdint>
#include <new>
#include <string_view>

namespace weft {

/// The tracks of a trace.
enum class trace_track : std::uint8_t {
  tasks,          ///< tasks, from their start (in a scope, for instance) to their end
  operations,     ///< operations that tasks are suspended on: a receive, a write, a sleep
  registrations,  ///< registrations and deregistrations of memory, from their start to their end
  connections,    ///< events of connections: a rail is lost, or is back
};

/// An observer of running executors: trace_file, or a program's own.
///
/// Called from the threads of all executors and workers, and from any thread that registers or deregisters memory. It
/// must not throw. The times that ran() gets are those of executor_options::clock.
class trace_sink {
 public:
  /// A span begins now; `item` identifies it until it has ended.
  virtual void began(trace_track track, const void* item, std::string_view name) noexcept = 0;
  /// The span that began with this `item` has ended. It may have begun before this sink was set.
  virtual void ended(trace_track track, const void* item) noexcept = 0;
  /// The calling thread has run a part of a task, from `start` to `end`.
  virtual void ran(std::string_view name, time_point start, time_point end) noexcept = 0;
  /// An event of no duration has happened now; events of one object have the same `item`.
  virtual void happened([[maybe_unused]] trace_track track, [[maybe_unused]] const void* item,
                        [[maybe_unused]] std::string_view name) noexcept {}

 protected:
  ~trace_sink() = default;  // never destroyed through this base
};

namespace detail {

inline constinit std::atomic<trace_sink*> active_trace{nullptr};

/// The sink in use; null, unless the program has set one. Checked before each event, which costs a load and a branch.
[[nodiscard]] inline trace_sink* current_trace() noexcept { return active_trace.load(std::memory_order_acquire); }

/// A span of time that begins and ends with a block. `name()` is called only if there is a sink.
class trace_span {
 public:
  template <class Name>
  trace_span(trace_track track, const void* item, const Name& name) noexcept
      : sink_(current_trace()), track_(track), item_(item) {
    if (sink_ == nullptr) return;
    try {
      sink_->began(track_, item_, name());
    } catch (const std::bad_alloc&) {  // no memory for a name: the span is left out
      sink_ = nullptr;
    }
  }
  trace_span(const trace_span&) = delete;
  trace_span& operator=(const trace_span&) = delete;
  ~trace_span() {
    if (sink_ != nullptr) sink_->ended(track_, item_);
  }

 private:
  trace_sink* sink_;
  trace_track track_;
  const void* item_;
};

}  // namespace detail

/// Makes `sink` observe all executors and workers of this process from now on; null ends that. The sink must live until
/// every executor, and every thread that registers or deregisters memory, that may have seen it has stopped.
inline void set_trace(trace_sink* sink) noexcept { detail::active_trace.store(sink, std::memory_order_release); }

}  // namespace weft
