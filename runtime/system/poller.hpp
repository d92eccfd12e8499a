// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace weft {

/// A source of completions that an executor polls: a completion queue, a simulated fabric.
///
/// All calls come from the executor's thread. One turn: poll() with a bounded budget.
/// To sleep: arm(), then poll() once more, because arming does not fire for what is queued already;
/// if that finds anything, disarm() and go on. After waking: disarm(), then poll().
class poller {
 public:
  /// Handles completions, about `budget` at most, and returns how many; 0 if there was nothing to do.
  virtual std::size_t poll(std::size_t budget) noexcept = 0;

  /// From now until disarm(), the next completion makes wait_fd() readable.
  virtual void arm() noexcept = 0;

  /// Ends what arm() has begun. At the end of the next arm() wait_fd() must no longer be readable for what has woken
  /// the executor, because that would wake it again.
  virtual void disarm() noexcept = 0;

  /// Whether the source may fail to make wait_fd() readable, so that a sleeping executor polls it now and then: kernels
  /// drop the completion events of devices when memory is tight. The answer must never change.
  [[nodiscard]] virtual bool may_lose_events() const noexcept { return true; }

  /// A descriptor, which must stay the same from add_poller() to remove_poller().
  [[nodiscard]] virtual int wait_fd() const noexcept = 0;

 protected:
  ~poller() = default;  // an executor never owns a poller
};

}  // namespace weft
