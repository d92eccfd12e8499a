// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/offload.hpp>
#include <weft/runtime/system/clock.hpp>

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "random.hpp"

namespace weft::sim {

/// Worker threads of virtual time: a job takes as long as the seed says. It runs on a thread that is no executor's, as
/// jobs may expect, but nobody else runs meanwhile, so that what happens is the same every time.
class workers final : public worker_pool {
 public:
  workers(clock& time, random& dice, duration longest);
  ~workers() override;

  void submit(detail::worker_job& job) override;
  [[nodiscard]] bool withdraw(detail::worker_job& job) noexcept override;

  /// Runs what is due; how many jobs that were.
  std::size_t run_due();
  /// When the next job is done.
  [[nodiscard]] std::optional<time_point> next_due() const noexcept;
  [[nodiscard]] bool idle() const noexcept { return waiting_.empty(); }

 private:
  struct entry {
    detail::worker_job* job;
    time_point due;
  };

  void run_on_thread(detail::worker_job& job);
  void serve();

  clock& time_;
  random& dice_;
  const duration longest_;
  std::vector<entry> waiting_;  // of the thread that runs

  std::mutex mutex_;
  std::condition_variable changed_;
  detail::worker_job* handed_over_ = nullptr;  // under the mutex; null: the thread has nothing to do
  bool closing_ = false;                       // under the mutex
  std::thread thread_;
};

}  // namespace weft::sim
