// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/birthplace.hpp>
#include <weft/runtime/core/owned_thread.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/worker_pool.hpp>

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <new>
#include <thread>

namespace weft {

// All pools of the process. Their mutexes are held across fork(2), so that the child finds each of them whole.
class worker_pool::all_pools {
 public:
  static void add(worker_pool& item) {
    static const int failed = ::pthread_atfork(lock_all, unlock_all, start_anew);
    if (failed != 0) throw std::bad_alloc();
    const std::lock_guard lock(mutex);
    all.push_front(item);
  }
  static void remove(worker_pool& item) noexcept {
    const std::lock_guard lock(mutex);
    all.remove(item);
  }

 private:
  static void lock_all() noexcept {
    mutex.lock();
    for (worker_pool& item : all) item.mutex_.lock();
  }
  static void unlock_all() noexcept {
    for (worker_pool& item : all) item.mutex_.unlock();
    mutex.unlock();
  }
  // Called in the child, where the pools have no threads.
  static void start_anew() noexcept {
    for (worker_pool& item : all) item.start_anew();
    unlock_all();
  }

  static inline constinit std::mutex mutex;
  static inline constinit detail::intrusive_list<worker_pool> all;
};

struct worker_pool::processors {
  cpu_set_t set;
};

worker_pool::worker_pool(std::size_t threads)
    : limit_(std::max<std::size_t>(threads, 1)), processors_(std::make_unique<processors>()) {
  if (::sched_getaffinity(0, sizeof processors_->set, &processors_->set) != 0) CPU_ZERO(&processors_->set);
  detail::watch_forks();
  threads_.reserve(limit_);
  all_pools::add(*this);
}

// Called in a child of fork(2): the pool has no threads there, and nobody waits for the parent's jobs.
void worker_pool::start_anew() noexcept {
  for (detail::owned_thread& thread : threads_) thread.join();
  threads_.clear();
  while (!queue_.empty()) queue_.pop_front();
  queued_ = 0;
  idle_ = 0;
}

worker_pool::~worker_pool() {
  all_pools::remove(*this);
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty()) detail::terminate_because("a worker_pool was destroyed with jobs queued");
    closing_ = true;
    ++news_;
  }
  news_.notify_all();
  for (detail::owned_thread& thread : threads_) thread.join();
}

namespace {

std::size_t usual_threads() noexcept { return std::max(2u, std::thread::hardware_concurrency()); }

}  // namespace

worker_pool& worker_pool::shared() {
  static worker_pool pool(usual_threads());
  return pool;
}

worker_pool& worker_pool::for_resources() {
  static worker_pool pool(usual_threads());
  return pool;
}

void worker_pool::submit(detail::worker_job& job) {
  std::unique_lock lock(mutex_);
  if (idle_ <= queued_ && threads_.size() < limit_) {
    // Workers block all signals except faults: signals are for threads that ask for them, but a blocked fault kills the
    // process before any handler runs.
    sigset_t blocked;
    sigset_t before;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    try {
      threads_.push_back(detail::owned_thread::run<&worker_pool::work>(*this));
    } catch (const std::exception&) {
      if (threads_.empty()) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  queue_.push_back(job);
  ++queued_;
  ++news_;
  const bool may_wait = idle_ != 0;
  lock.unlock();  // before notify_one(), because a thread that wakes takes the mutex at once
  if (may_wait) news_.notify_one();
}

bool worker_pool::withdraw(detail::worker_job& job) noexcept {
  const std::lock_guard lock(mutex_);
  if (!queue_.contains(job)) return false;
  queue_.remove(job);
  --queued_;
  return true;
}

void worker_pool::work() noexcept {
  // A new thread inherits the processors of the thread that called submit(), which may be pinned. If that cannot be
  // changed, the new thread keeps the inherited processors.
  const cpu_set_t& usable = processors_->set;
  if (CPU_COUNT(&usable) != 0) ::sched_setaffinity(0, sizeof usable, &usable);
  std::unique_lock lock(mutex_);
  for (;;) {
    while (queue_.empty()) {
      if (closing_) return;
      const std::uint32_t last = news_.load(std::memory_order_relaxed);
      ++idle_;
      lock.unlock();
      news_.wait(last);
      lock.lock();
      --idle_;
    }
    detail::worker_job& job = queue_.pop_front();
    --queued_;
    lock.unlock();
    job.run();
    lock.lock();
  }
}

}  // namespace weft
