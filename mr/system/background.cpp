// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/system/background.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/offload.hpp>

#include <exception>

namespace weft::mr::detail {
namespace {

task<> run_and_destroy(std::unique_ptr<background_job>& job) {
  const auto work = [&job]() noexcept {
    job->run();
    job.reset();
  };
  co_await weft::detail::offload_for_resources(work);
}

// Takes the job only when it starts, so that the caller keeps the job if starting fails.
task<> hand_over(background_job* item) {
  std::unique_ptr<background_job> job(item);
  try {
    co_await run_and_destroy(job);
  } catch (const std::exception&) {  // no worker could be started, for want of a thread or of memory
    job->run();
  }
}

}  // namespace

void run_on_worker(std::unique_ptr<background_job> job) noexcept {
  executor_core* const running = executor_core::current();
  // A handler of a foreign event loop runs between the turns of the executor that the loop drives; that executor is not
  // current() then.
  if (executor_core* const home = running != nullptr ? running : executor_core::driven_here()) {
    try {
      run_in_background(*home, hand_over(job.get()));
      static_cast<void>(job.release());
      return;
    } catch (const std::bad_alloc&) {  // no memory: run it here, which stalls the executor
    }
  }
  job->run();
}

}  // namespace weft::mr::detail
