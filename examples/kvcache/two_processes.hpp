// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>

namespace kvcache {

/// A fork of this process, on a core of its own where there are two. Made before this process has threads.
class other_process {
 public:
  /// `work` is all that it does. What it throws is said on the standard error stream, and is a failure. This process
  /// stays on the other core from then on.
  explicit other_process(const std::function<void()>& work);
  other_process(const other_process&) = delete;
  other_process& operator=(const other_process&) = delete;
  /// Kills it if join() was not called.
  ~other_process();

  /// Waits for its end. Throws common::failure if it has failed.
  void join();

 private:
  pid_t id_;
};

}  // namespace kvcache
