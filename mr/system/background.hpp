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

  /// Runs once, then the job is destroyed, both on the same thread.
  virtual void run() noexcept = 0;
};

/// Has a worker run and destroy `job`; executor::run() returns only after that. On a thread without an executor, where
/// blocking does no harm, it happens before the call returns.
void run_on_worker(std::unique_ptr<background_job> job) noexcept;

}  // namespace weft::mr::detail
