// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/error.hpp>
#include <weft/runtime/sync_wait.hpp>

#include <condition_variable>
#include <mutex>

namespace weft::detail {
namespace {

class blocked_caller final : public remote_call_base::caller {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_; });
  }

 private:
  void call_ended() noexcept override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_one();  // under the lock, because the waiting thread destroys this object when it wakes
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

}  // namespace

void block_until_ended(remote_call_base& call, executor_core& where) {
  const bool is_executors = executor_core::current() != nullptr || executor_core::driven_here() != nullptr;
  if (is_executors)
    throw error(errc::wrong_thread, "sync_wait on a thread that runs an executor (co_await run_on() instead)");
  blocked_caller here;
  call.start(where, here, "sync_wait");
  here.wait();
}

}  // namespace weft::detail
