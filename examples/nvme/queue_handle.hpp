// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/executor.hpp>

#include <cstdint>
#include <memory>

#include <nvme/controller.hpp>
#include <nvme/identify.hpp>

namespace nvme {

/// What can be done to a queue from another executor's thread.
class queue_control {
 public:
  /// Ends the connection.
  virtual void abort() noexcept = 0;
  /// Takes no further command, and closes the connection once those under way are done.
  virtual void drain() noexcept = 0;
  virtual void notify(const async_event& what) noexcept = 0;
  /// A queue of its controller has ended.
  virtual void other_ended() noexcept = 0;

 protected:
  ~queue_control() = default;
};

/// A way to a queue that may have ended.
class queue_handle {
 public:
  queue_handle(std::uint16_t number, weft::executor& where, queue_control& to) noexcept
      : id(number), home_(where), to_(&to) {}

  // From any thread; they take effect on the queue's executor, soon, if the queue is still there then.
  static void abort(const std::shared_ptr<queue_handle>& what) {
    what->home_.post([what] {
      if (what->to_ != nullptr) what->to_->abort();
    });
  }
  static void drain(const std::shared_ptr<queue_handle>& what) {
    what->home_.post([what] {
      if (what->to_ != nullptr) what->to_->drain();
    });
  }
  static void notify(const std::shared_ptr<queue_handle>& what, const async_event& event) {
    what->home_.post([what, event] {
      if (what->to_ != nullptr) what->to_->notify(event);
    });
  }
  static void other_ended(const std::shared_ptr<queue_handle>& what) {
    what->home_.post([what] {
      if (what->to_ != nullptr) what->to_->other_ended();
    });
  }

  /// On the queue's executor: it ends.
  void detach() noexcept { to_ = nullptr; }

  const std::uint16_t id;
  queue_counters counters;

 private:
  weft::executor& home_;
  queue_control* to_;  // on its executor only
};

}  // namespace nvme
