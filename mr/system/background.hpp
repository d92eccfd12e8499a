// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace weft::mr::detail {

/// Blocking work that nobody waits for: giving memory back, growing a pool.
class background_job {
 public:
  background_job() = default;
  background_job(const background_job&) = delete;
  background_job& operator=(const background_job&) = delete;
  virtual ~background_job() = default;

  /// Does the work. Called once; the job is destroyed next, on the same thread.
  virtual void run() noexcept = 0;
};

/// Has a worker run and destroy `job`; executor::run() returns only after that. On a thread without an executor, where
/// blocking does no harm, this call runs and destroys the job itself. If there is no thread or memory for a worker, the
/// job runs on the executor's thread, and stalls the executor.
void run_on_worker(std::unique_ptr<background_job> job) noexcept;

}  // namespace weft::mr::detail
