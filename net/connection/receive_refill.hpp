// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool.hpp>
#include <weft/net/link/receive_slot.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/stop_token.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

#include <cassert>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

namespace weft::net {

/// Finds memory for receives that have none. try_fill() takes memory that the pool has at hand; add() waits for it in
/// the background, in order.
class receive_refill {
 public:
  class client {
   protected:
    ~client() = default;

   private:
    friend class receive_refill;
    virtual void refilled(receive_slot& slot, mr::buffer memory) noexcept = 0;
    /// Called when the pool cannot provide more memory; the next add() or retry() asks again.
    virtual void refill_failed(const error& why) noexcept = 0;
  };

  receive_refill(client& whose, mr::pool& pool, std::size_t bytes) noexcept
      : client_(whose), home_(*executor_core::current()), pool_(pool), bytes_(bytes) {}
  receive_refill(const receive_refill&) = delete;
  receive_refill& operator=(const receive_refill&) = delete;
  ~receive_refill() { assert(!running_); }

  /// Takes memory for a receive; empty if the pool has none at hand, or if slots wait for memory.
  [[nodiscard]] std::optional<mr::buffer> try_take() noexcept {
    return empty_.empty() ? pool_.try_allocate(bytes_, mr::budget::receive) : std::nullopt;
  }
  /// Gives the slot memory from try_take(). False if that yields none.
  [[nodiscard]] bool try_fill(receive_slot& slot) noexcept {
    auto memory = try_take();
    if (!memory) [[unlikely]]
      return false;
    slot.memory = *std::move(memory);
    return true;
  }
  /// Calls client::refilled() once there is memory for the slot, or client::refill_failed(); neither after stop(). The
  /// work in the background keeps the `owner` alive with which it was started. Without an owner, wait for ended()
  /// before this object is destroyed.
  void add(receive_slot& slot, std::shared_ptr<void> owner = nullptr) noexcept;
  /// Asks again for slots that are left after a failure.
  void retry(std::shared_ptr<void> owner) noexcept;
  /// Ends the work in the background. Slots that still wait get nothing.
  void stop() noexcept { stop_.request_stop(); }
  [[nodiscard]] bool running() const noexcept { return running_; }
  event::wait_operation ended() noexcept { return ended_.wait(); }

 private:
  task<> run(std::shared_ptr<void> owner);

  client& client_;
  executor_core& home_;
  mr::pool& pool_;
  std::size_t bytes_;
  receive_slot_queue empty_;
  bool running_ = false;
  stop_source stop_;
  event ended_;
};

}  // namespace weft::net
