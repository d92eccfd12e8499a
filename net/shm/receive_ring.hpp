// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/software/receive_queue.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace weft::net::shm {

/// The receives of a link: those that were posted to it, or those that it takes one by one from a shared queue.
class receive_ring {
 public:
  /// `queue` may be null.
  explicit receive_ring(std::shared_ptr<net::receive_queue> queue) noexcept : queue_(std::move(queue)) {}
  receive_ring(const receive_ring&) = delete;
  receive_ring& operator=(const receive_ring&) = delete;

  void make_room(std::size_t depth) { ring_.resize(queue_ != nullptr ? 1 : depth); }
  /// Queues a receive. True if a message has waited for it.
  [[nodiscard]] bool post(receive_work& work) noexcept {
    ring_[(begin_ + count_++) % ring_.size()] = &work;
    return std::exchange(stalled_, false);
  }
  /// Chooses the receive of a message that begins. False if the message has to wait for a receive.
  [[nodiscard]] bool begin(software::receive_queue::taker& who) noexcept {
    if (current_ != nullptr) return true;
    if (queue_ != nullptr && count_ == 0) {
      current_ = static_cast<software::receive_queue&>(*queue_).take(who);
    } else if (count_ != 0) {
      current_ = take_oldest();
    }
    stalled_ = current_ == nullptr;
    return !stalled_;
  }
  /// The receive that is being filled.
  [[nodiscard]] receive_work& current() const noexcept { return *current_; }
  [[nodiscard]] receive_work& take_current() noexcept { return *std::exchange(current_, nullptr); }
  /// Whether a message waits for a receive.
  [[nodiscard]] bool is_stalled() const noexcept { return stalled_; }

  /// Ends the wait of `who` for a receive of the shared queue.
  void forget(software::receive_queue::taker& who) noexcept {
    if (queue_ != nullptr) static_cast<software::receive_queue&>(*queue_).forget(who);
  }
  void flush(link_events& events) noexcept {
    if (current_ != nullptr) events.receive_flushed(take_current());
    while (count_ != 0) events.receive_flushed(*take_oldest());
  }

 private:
  receive_work* take_oldest() noexcept {
    receive_work* const oldest = ring_[begin_];
    begin_ = (begin_ + 1) % ring_.size();
    --count_;
    return oldest;
  }

  std::shared_ptr<net::receive_queue> queue_;  // null: the receives are posted here
  std::vector<receive_work*> ring_;
  std::size_t begin_ = 0;
  std::size_t count_ = 0;
  receive_work* current_ = nullptr;
  bool stalled_ = false;
};

}  // namespace weft::net::shm
