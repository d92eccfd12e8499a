// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/region.hpp>
#include <weft/runtime/core/remote_waiter.hpp>
#include <weft/runtime/core/sole_handle.hpp>
#include <weft/runtime/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace weft::mr {

namespace detail {
class event_queue_core;
class submission;
}  // namespace detail

/// How a registration that was submitted has ended.
struct registration_event {
  registration_event(void* given, result<region> end) noexcept : context(given), outcome(std::move(end)) {}

  void* context;           ///< what domain::submit() was given; weft does not look at it
  result<region> outcome;  ///< the region, which is the reader's now, or why there is none
};

/// A registration that domain::submit() has started. Move-only; on any thread.
///
/// Destroyed before its event was read, it cancels the registration: what has been registered is deregistered by a
/// worker, and the event, which comes after that, says errc::canceled. So memory that is borrowed may be given back
/// once the event has been read, however it ended.
class pending_region {
 public:
  pending_region() noexcept = default;
  pending_region(pending_region&& other) noexcept = default;
  pending_region& operator=(pending_region&& other) noexcept {
    pending_region taken(std::move(other));
    submission_.swap(taken.submission_);
    return *this;
  }
  ~pending_region();

  explicit operator bool() const noexcept { return submission_ != nullptr; }

  /// Whether its event can be read, or has been.
  [[nodiscard]] bool is_complete() const noexcept;

  /// The key that peers use. Throws errc::key_not_available before the event can be read, the failure if there is
  /// one, and errc::access_denied if the usage lets no peer in. See fi_mr_key(3).
  [[nodiscard]] std::uint64_t key() const;

 private:
  friend class domain;
  explicit pending_region(std::shared_ptr<detail::submission> started) noexcept : submission_(std::move(started)) {}

  weft::detail::sole_handle<std::shared_ptr<detail::submission>, "a pending region"> submission_;
};

/// Where the ends of submitted registrations can be read, as from an event queue of libfabric: fi_mr(3), "FI_REG_MR".
///
/// Each submission that did not throw yields one event, in the order in which they end; none is dropped, for submit()
/// has made room for it. Any number of tasks on any executors may wait for the next; an event goes to one of them, and
/// none is lost by a stop, or when a task that waits is destroyed. Threads share it freely.
///
/// Nobody may wait for it when it is destroyed. The regions of events that were not read are destroyed with it; what is
/// still being registered then is undone by its worker.
class event_queue {
 public:
  class next_operation;

  event_queue();
  event_queue(const event_queue&) = delete;
  event_queue& operator=(const event_queue&) = delete;
  ~event_queue();

  /// `const auto event = co_await queue.next();` waits for an event. errc::canceled if it is stopped first.
  [[nodiscard]] next_operation next() noexcept;
  /// Without waiting.
  [[nodiscard]] std::optional<registration_event> try_next() noexcept;
  /// Events that can be read now.
  [[nodiscard]] std::size_t size() const noexcept;

 private:
  friend class domain;
  std::shared_ptr<detail::event_queue_core> core_;
};

/// What event_queue::next() returns.
class event_queue::next_operation final : public weft::detail::remote_waiter {
 public:
  next_operation(next_operation&& other) noexcept;
  ~next_operation();
  bool await_ready() noexcept;
  [[nodiscard]] registration_event await_resume();

 private:
  friend class event_queue;
  friend class detail::event_queue_core;
  explicit next_operation(detail::event_queue_core& source) noexcept : core_(&source) {}
  void begin() override;
  void cancel() noexcept override;

  detail::event_queue_core* core_;
  std::shared_ptr<detail::submission> received_;  // under the core's mutex while it waits
};

}  // namespace weft::mr
