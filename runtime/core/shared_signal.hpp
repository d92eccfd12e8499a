// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/event_driver.hpp>

#include <atomic>

namespace weft::detail {

/// Reads a signal through an executor's event driver, so that the signal calls came() instead of ending the program.
/// The constructor blocks the signal in the calling thread. The destructor of the last shared_signal for that signal
/// unblocks it in the calling thread, unless the thread that made the first one had blocked the signal before.
class shared_signal : private io_operation {
 public:
  explicit shared_signal(int signal);
  shared_signal(const shared_signal&) = delete;
  shared_signal& operator=(const shared_signal&) = delete;

  [[nodiscard]] int signal() const noexcept { return signal_; }
  /// Whether watch() was called, and not unwatch() since. From any thread.
  [[nodiscard]] bool is_watched() const noexcept { return driver_.load(std::memory_order_relaxed) != nullptr; }
  void watch(event_driver& driver) noexcept;
  void unwatch() noexcept;

 protected:
  ~shared_signal();
  /// Called on the executor when this object has read the signal; of several objects for a signal, only one reads it.
  virtual void came() noexcept = 0;

 private:
  void complete(int result) noexcept override;
  [[nodiscard]] bool try_read() noexcept;

  const int signal_;
  descriptor descriptor_;
  std::atomic<event_driver*> driver_{nullptr};  // null while the signal is not watched
};

}  // namespace weft::detail
