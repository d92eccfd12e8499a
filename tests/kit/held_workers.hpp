// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/worker_pool.hpp>

#include <cassert>

#include "kit/standard.hpp"

namespace weft::test {

/// Workers that do a job as soon as they get it, each on a thread of its own, while the executor waits. But one job
/// they have only begun, and do it when the test says so: meanwhile the frame that waits for it may be destroyed.
class held_workers final : public worker_pool {
 public:
  /// It is the job with that number, counted from 0; by default none.
  explicit held_workers(std::size_t number = SIZE_MAX) : left_(number) {}
  ~held_workers() override { assert(held_ == nullptr && "a job was held for good"); }

  /// It is the next job, and is done by whoever waits for its end and would not go on before.
  void hold_next_until_waited_for() noexcept {
    left_ = 0;
    ends_when_waited_for_ = true;
  }
  /// Whether they have the job.
  [[nodiscard]] bool hold_it() const noexcept { return held_ != nullptr; }
  /// Have it done, if they have it, and hold none from now on.
  void let_go() {
    left_ = SIZE_MAX;
    if (detail::worker_job* const job = std::exchange(held_, nullptr)) do_elsewhere(*job);
  }

  void submit(detail::worker_job& job) override {
    if (left_-- != 0) return do_elsewhere(job);
    held_ = &job;
  }
  [[nodiscard]] bool withdraw(detail::worker_job& job) noexcept override {
    if (&job == held_ && ends_when_waited_for_) let_go();
    return false;
  }

 private:
  static void do_elsewhere(detail::worker_job& job) {
    std::thread([&job] { run(job); }).join();
  }

  std::size_t left_;  // before the job; then it wraps
  detail::worker_job* held_ = nullptr;
  bool ends_when_waited_for_ = false;
};

}  // namespace weft::test
