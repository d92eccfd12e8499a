// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/porting/event_request.hpp>
#include <weft/mr/porting/registration_event.hpp>
#include <weft/mr/region/region_state.hpp>
#include <weft/mr/registration.hpp>
#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/offload.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

namespace weft::mr::porting::detail {

class submission;

/// The events of an event_queue, and the tasks that wait for them. Outlives the queue, because workers may finish
/// later.
class event_queue_core {
 public:
  /// Gives an event to the task that has waited longest, or keeps it. If the handle or the queue is gone, it first
  /// undoes the registration, which blocks; without a queue, it drops the event. From any thread.
  void deliver(submission& ended) noexcept;
  /// Puts back an event that its reader did not read, as the next one. If the handle is gone, has the registration
  /// undone, and its event delivered anew; if the queue is gone, drops the event.
  void put_back(std::shared_ptr<submission> unread) noexcept;
  /// Takes the oldest event; null if there is none.
  [[nodiscard]] std::shared_ptr<submission> take() noexcept;
  /// Takes the oldest event; if there is none, makes `waiter` wait and returns null.
  [[nodiscard]] std::shared_ptr<submission> take_or_wait(event_request& waiter) noexcept;
  /// Withdraws the waiter. False if an event is on its way to it already.
  [[nodiscard]] bool give_up(event_request& waiter) noexcept;
  [[nodiscard]] std::size_t size() const noexcept;
  /// Called when the event queue is destroyed. Destroys the regions of events that were not read.
  void close() noexcept;

 private:
  friend class submission;
  // Delivers the event. False if the registration has to be undone first.
  [[nodiscard]] bool try_to_deliver(submission& ended) noexcept;
  [[nodiscard]] std::shared_ptr<submission> take_first() noexcept;
  void append(submission& item) noexcept;
  void prepend(submission& item) noexcept;
  void remove(submission& item) noexcept;
  // Gives the first event to the first waiter, if there are both.
  void serve(weft::detail::remote_wake_ups& served) noexcept;

  mutable std::mutex mutex_;  // guards the states of all submissions, too
  weft::detail::intrusive_list<submission> events_;
  std::size_t size_ = 0;
  weft::detail::remote_waiters waiters_;  // empty while there is an event
  bool closed_ = false;
};

/// A registration that a worker carries out, and its event.
class submission final : public weft::detail::worker_job, public weft::detail::list_hook<submission> {
 public:
  submission(std::unique_ptr<mr::detail::region_state> target, const registration_options& options,
             std::shared_ptr<event_queue_core> queue, void* context);
  submission(const submission&) = delete;
  submission& operator=(const submission&) = delete;
  ~submission();

  /// Hands the submission to a worker. It keeps itself alive until its event has been read. Throws what
  /// worker_pool::submit() does.
  static void start(std::shared_ptr<submission> item);
  /// Cancels the registration if its event was not read. Called when the handle is destroyed.
  void abandon() noexcept;
  [[nodiscard]] bool is_complete() const noexcept;
  [[nodiscard]] std::uint64_t key() const;
  /// Returns the outcome, for the reader of the event. Called once.
  [[nodiscard]] registration_event event() noexcept;

 private:
  friend class event_queue_core;
  // Under the queue's mutex. working: the registration is being made or undone, or waits for that; listed: the event is
  // in the queue; read: the event was taken out, or was dropped because the queue is gone.
  enum class progress : std::uint8_t { working, listed, read };

  void run() noexcept override;
  void perform() noexcept;
  [[nodiscard]] bool is_abandoned() const noexcept;
  void undo() noexcept;
  void undo_on_worker() noexcept;

  // Written without the mutex, by one thread at a time: the worker, or whoever undoes its work or reads the event.
  std::unique_ptr<mr::detail::region_state> target_;
  std::optional<error> failure_;

  const registration_options options_;
  const std::shared_ptr<event_queue_core> queue_;
  weft::worker_pool& workers_;
  void* const context_;
  // Made in advance, so that a worker reports these errors without allocating.
  const error canceled_;
  const error out_of_memory_;

  // Under the queue's mutex.
  progress progress_ = progress::working;
  bool abandoned_ = false;
  std::uint64_t key_ = 0;
  std::shared_ptr<submission> self_;  // until the event has been read
};

}  // namespace weft::mr::porting::detail
