// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/clock.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::detail {

/// An action due at a point in time. Intrusive: its owner, usually an awaiter, must disarm it before destroying it.
class timer {
 public:
  timer() = default;
  timer(const timer&) = delete;
  timer& operator=(const timer&) = delete;

  [[nodiscard]] bool armed() const noexcept { return index_ != unarmed; }

 protected:
  ~timer() { assert(!armed() && "a timer was destroyed while armed"); }

  /// Called on the executor's thread when the deadline has passed, after disarming: at most once for each arm().
  virtual void expired() noexcept = 0;

 private:
  friend class timer_queue;
  static constexpr std::size_t unarmed = static_cast<std::size_t>(-1);

  time_point deadline_{};
  std::uint64_t turn_ = 0;       // orders timers of the same deadline: first armed, first expired
  std::size_t index_ = unarmed;  // the timer's place in the heap
};

/// The armed timers of one executor: a binary heap in which each timer knows its place, so disarming is logarithmic. It
/// allocates only when more timers are armed at a time than ever before.
class timer_queue {
 public:
  timer_queue() = default;
  timer_queue(const timer_queue&) = delete;
  timer_queue& operator=(const timer_queue&) = delete;
  ~timer_queue() { assert(heap_.empty() && "an executor ended with timers armed"); }

  void arm(timer& item, time_point deadline);
  void disarm(timer& item) noexcept;

  [[nodiscard]] bool empty() const noexcept { return heap_.empty(); }
  [[nodiscard]] time_point next_deadline() const noexcept { return heap_.front()->deadline_; }

  /// Disarms at most `budget` timers that are due, calls expired() of each, and returns how many there were.
  std::size_t expire(time_point now, std::size_t budget) noexcept;

 private:
  void place(timer& item, std::size_t index) noexcept;
  void sift_up(std::size_t index) noexcept;
  void sift_down(std::size_t index) noexcept;

  static bool before(const timer& a, const timer& b) noexcept {
    return a.deadline_ != b.deadline_ ? a.deadline_ < b.deadline_ : a.turn_ < b.turn_;
  }

  std::vector<timer*> heap_;
  std::uint64_t armed_ = 0;  // how many times arm() was called
};

}  // namespace weft::detail
