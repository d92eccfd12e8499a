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

/// What the links of one device on one executor share: the channel of connection manager events, the device's own
/// events, and completion queues.
class executor_state final : public weft::detail::attachment, private async_handler {
 public:
  /// A connection or a listener: while there is one, events are watched for, and it hears of what happens to the
  /// device.
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

  /// The running executor's, for `home`; created at the first call. Throws weft::error.
  [[nodiscard]] static executor_state& of(const std::shared_ptr<device>& home);

  explicit executor_state(std::shared_ptr<device> home);
  ~executor_state() override { target_->end(); }

  [[nodiscard]] const std::shared_ptr<device>& home() const noexcept { return device_; }
  [[nodiscard]] executor_core& owner() const noexcept { return executor_; }
  [[nodiscard]] event_channel& channel() noexcept { return channel_; }

  /// A queue with room for so many completions, which is reserved. A worker makes one where those that there are are
  /// full. Throws weft::error: errc::invalid_argument for more than the device can.
  [[nodiscard]] task<completion_queue*> reserve(std::uint32_t entries);
  /// Gives the room back. From a coroutine, not from inside a poll.
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
  bool making_ = false;  // one more
  event made_;
};

}  // namespace weft::net::verbs
