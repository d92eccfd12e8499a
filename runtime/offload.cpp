// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/offload.hpp>

#include <algorithm>
#include <cassert>
#include <csignal>
#include <utility>

namespace weft {

worker_pool::worker_pool(std::size_t threads) : limit_(std::max<std::size_t>(threads, 1)) {
  if (::sched_getaffinity(0, sizeof processors_, &processors_) != 0) CPU_ZERO(&processors_);
  threads_.reserve(limit_);
}

worker_pool::~worker_pool() {
  {
    const std::lock_guard lock(mutex_);
    assert(first_ == nullptr && "a worker pool ended with jobs queued");
    closing_ = true;
  }
  arrived_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

worker_pool& worker_pool::shared() {
  static worker_pool pool(std::max(2u, std::thread::hardware_concurrency()));
  return pool;
}

void worker_pool::submit(detail::worker_job& job) {
  const std::lock_guard lock(mutex_);
  if (idle_ <= queued_ && threads_.size() < limit_) {
    // Signals are for the threads that ask for them, never for a worker.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  job.previous_ = last_;
  job.next_ = nullptr;
  job.queued_ = true;
  (last_ != nullptr ? last_->next_ : first_) = &job;
  last_ = &job;
  ++queued_;
  arrived_.notify_one();
}

void worker_pool::unlink(detail::worker_job& job) noexcept {
  (job.previous_ != nullptr ? job.previous_->next_ : first_) = job.next_;
  (job.next_ != nullptr ? job.next_->previous_ : last_) = job.previous_;
  job.queued_ = false;
  --queued_;
}

bool worker_pool::withdraw(detail::worker_job& job) noexcept {
  const std::lock_guard lock(mutex_);
  if (!job.queued_) return false;
  unlink(job);
  return true;
}

void worker_pool::work() noexcept {
  // Inherited from the thread that needed us. Where it cannot be changed, that is no worse than before.
  if (CPU_COUNT(&processors_) != 0) ::sched_setaffinity(0, sizeof processors_, &processors_);
  std::unique_lock lock(mutex_);
  for (;;) {
    while (first_ == nullptr) {
      if (closing_) return;
      ++idle_;
      arrived_.wait(lock);
      --idle_;
    }
    detail::worker_job& job = *first_;
    unlink(job);
    lock.unlock();
    job.run();
    lock.lock();
  }
}

namespace detail {

void offload_base::begin() { home().workers().submit(*this); }

offload_base::~offload_base() {
  if (!waiting() || home().workers().withdraw(*this)) return;
  terminate_because("a task was destroyed while a worker thread runs its offloaded function");
}

void offload_base::run() noexcept {
  invoke();
  ran_ = true;
  home().submit(*this);
}

// One that has begun ends by itself.
void offload_base::cancel() noexcept {
  if (home().workers().withdraw(*this)) finish();
}

void offload_base::throw_if_canceled() const {
  if (!ran_) throw error(errc::canceled, "offload");
}

}  // namespace detail
}  // namespace weft
