// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/descriptor.hpp>
#include <weft/runtime/system/event_driver.hpp>
#include <weft/runtime/system/poller.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <cstddef>
#include <memory>
#include <vector>

namespace weft::detail {

/// A poller, and the operation that ends when its descriptor becomes readable while the executor sleeps.
class poller_watch final : private io_operation {
 public:
  poller_watch(poller& source, system_calls& calls)
      : io_operation(io_kind::readable), source_(&source), descriptor_(source.wait_fd(), calls, descriptor::borrowed) {
    target = &descriptor_;
  }

  [[nodiscard]] poller& source() const noexcept { return *source_; }
  void watch(event_driver& driver) noexcept {
    if (!in_progress()) driver.start(*this);
  }
  void unwatch(event_driver& driver) noexcept;

 private:
  void complete(int) noexcept override {}  // its only purpose is to end the wait

  poller* source_;
  descriptor descriptor_;
};

/// The pollers of an executor.
class poller_set {
 public:
  [[nodiscard]] bool empty() const noexcept { return empty_; }
  /// Whether one of them may lose events: see poller::may_lose_events().
  [[nodiscard]] bool may_lose_events() const noexcept { return forgetful_ != 0; }

  void add(poller& source, system_calls& calls);
  /// Stops watching the poller, and removes it. Ends the program if `source` is not here.
  void remove(poller& source, event_driver& driver) noexcept;

  /// Polls all of them; returns how many completions they have handled.
  [[gnu::noinline]] std::size_t poll() noexcept {
    constexpr std::size_t batch = 64;
    std::size_t resumed = 0;
    for (const auto& each : all_) resumed += each->source().poll(batch);
    return resumed;
  }
  void arm() noexcept {
    for (const auto& each : all_) each->source().arm();
  }
  [[gnu::noinline]] void disarm() noexcept {
    for (const auto& each : all_) each->source().disarm();
  }
  /// Makes `driver` wake the executor when one of them has news.
  void watch(event_driver& driver) noexcept {
    for (const auto& each : all_) each->watch(driver);
  }
  void unwatch(event_driver& driver) noexcept {
    for (const auto& each : all_) each->unwatch(driver);
  }

 private:
  std::vector<std::unique_ptr<poller_watch>> all_;
  bool empty_ = true;
  std::size_t forgetful_ = 0;
};

}  // namespace weft::detail
