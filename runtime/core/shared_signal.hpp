// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/event_driver.hpp>

#include <atomic>

namespace weft::detail {

/// Waits for a signal that executors read, so that it does not end the program. Each thread that makes one of these
/// blocks the signal; the thread that destroys the last one unblocks it.
class shared_signal : private io_operation {
 public:
  explicit shared_signal(int signal);
  shared_signal(const shared_signal&) = delete;
  shared_signal& operator=(const shared_signal&) = delete;

  [[nodiscard]] int signal() const noexcept { return signal_; }
  /// Whether it is between watch() and unwatch(). From any thread.
  [[nodiscard]] bool is_watched() const noexcept { return driver_.load(std::memory_order_relaxed) != nullptr; }
  void watch(event_driver& driver) noexcept;
  void unwatch() noexcept;

 protected:
  ~shared_signal();
  /// Called when the signal has come and no other executor has read it.
  virtual void came() noexcept = 0;

 private:
  void complete(int result) noexcept override;
  [[nodiscard]] bool try_read() noexcept;

  const int signal_;
  descriptor descriptor_;
  std::atomic<event_driver*> driver_{nullptr};  // null: it is not watched
};

}  // namespace weft::detail
