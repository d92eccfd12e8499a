// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/porting/event_request.hpp>
#include <weft/mr/porting/registration_event.hpp>

#include <cstddef>
#include <memory>
#include <optional>

namespace weft::mr::porting {

namespace detail {
class event_queue_core;
}

/// A queue of the results of submitted registrations, like an event queue of libfabric: fi_mr(3), "FI_REG_MR".
///
/// Each submission that did not throw yields one event, in the order of completion; no event is dropped while the queue
/// exists, because submit() has made room for it. Any number of tasks on any executors may wait for events. Each event
/// goes to one of them, and no event is lost if a task that waits is stopped or destroyed. Thread-safe.
///
/// No task may wait for an event when the queue is destroyed. The regions of events that were not read are destroyed
/// with the queue; registrations still in progress are undone by their workers.
class event_queue {
 public:
  class [[nodiscard("co_await it")]] next_operation;

  event_queue();
  event_queue(const event_queue&) = delete;
  event_queue& operator=(const event_queue&) = delete;
  ~event_queue();

  /// `const auto event = co_await queue.next();` waits for an event. errc::canceled if the task is stopped first.
  next_operation next() noexcept;
  /// Takes the next event without waiting; empty if there is none.
  [[nodiscard]] std::optional<registration_event> try_next() noexcept;
  /// The number of events that can be read now.
  [[nodiscard]] std::size_t size() const noexcept;

  /// For submit().
  [[nodiscard]] const std::shared_ptr<detail::event_queue_core>& core() const noexcept { return core_; }

 private:
  std::shared_ptr<detail::event_queue_core> core_;
};

/// The awaitable that event_queue::next() returns.
class event_queue::next_operation final : public detail::event_request {
 public:
  next_operation(next_operation&& other) noexcept;
  ~next_operation();
  bool await_ready() noexcept;
  [[nodiscard]] registration_event await_resume();

 private:
  friend class event_queue;
  explicit next_operation(detail::event_queue_core& source) noexcept : core_(&source) {}
  void begin() override;
  void cancel() noexcept override;

  detail::event_queue_core* core_;
};

}  // namespace weft::mr::porting
