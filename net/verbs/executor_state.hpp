// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/verbs/completion_queue.hpp>
#include <weft/net/verbs/device.hpp>
#include <weft/net/verbs/event_channel.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/intrusive_list.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace weft::net::verbs {

/// Shared by the links of one device on one executor: the channel of connection manager events, the device's
/// asynchronous events, and completion queues.
class executor_state final : public weft::detail::attachment, private async_handler {
 public:
  /// A connection, a listener or a shared receive queue. Events are watched while there is a user; each user gets the
  /// events about the device.
  class user : public weft::detail::list_hook<user> {
   public:
    user(executor_state& shared, async_handler& who);
    user(const user&) = delete;
    user& operator=(const user&) = delete;
    ~user();

   private:
    friend class executor_state;
    executor_state& shared_;
    async_handler& handler_;
  };

  /// The running executor's state for `home`; created at the first call. Throws weft::error.
  [[nodiscard]] static executor_state& of(const std::shared_ptr<device>& home);

  explicit executor_state(std::shared_ptr<device> home);
  ~executor_state() override { target_->end(); }

  [[nodiscard]] const std::shared_ptr<device>& home() const noexcept { return device_; }
  [[nodiscard]] executor_core& owner() const noexcept { return executor_; }
  [[nodiscard]] event_channel& channel() noexcept { return channel_; }

  /// Reserves room for `entries` completions, and yields the queue that has it; a worker creates one if all are full.
  /// Throws weft::error: errc::invalid_argument if the device's largest queue is too small.
  task<completion_queue*> reserve(std::uint32_t entries);
  /// Gives reserved room back. Call it from a coroutine, not inside a poll.
  void release(completion_queue& from, std::uint32_t entries) noexcept;

 private:
  void on_async_event(ibv_event_type what, int port) noexcept override;
  void reserve_in(completion_queue& queue, std::uint32_t entries);
  [[nodiscard]] completion_queue* find_room(std::uint32_t entries);

  executor_core& executor_;
  std::shared_ptr<device> device_;
  event_channel channel_;
  async_events events_;
  std::shared_ptr<async_target> target_;
  weft::detail::intrusive_list<user> users_;
  std::vector<std::unique_ptr<completion_queue>> queues_;
  bool making_ = false;  // a worker is creating a queue
  event made_;
};

}  // namespace weft::net::verbs
