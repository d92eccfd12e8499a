// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/intrusive_list.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace weft {

class worker_pool;

namespace detail {

class owned_thread;

/// Work for a thread of a worker_pool. Intrusive.
class worker_job : public list_hook<worker_job> {
 public:
  worker_job() = default;
  worker_job(const worker_job&) = delete;
  worker_job& operator=(const worker_job&) = delete;

 protected:
  ~worker_job() = default;

  /// Called on a worker thread, once for each submit() that is not withdrawn. The job may be destroyed as soon as run()
  /// has made its result known, so run() must not touch it after that.
  virtual void run() noexcept = 0;

 private:
  friend class weft::worker_pool;
};

}  // namespace detail

/// A bounded number of threads for work that would block an executor: registration, files, name resolution, hashing.
/// Threads start on demand, and must not run an executor. They may use every processor that was available to the thread
/// which made the pool, even if the thread that calls submit() is pinned. The destructor waits for the jobs that are
/// running, and ends the program if jobs are queued.
///
/// A child of fork(2) has a copy of the pool without its threads: it starts new threads on demand, and does not run
/// jobs that the parent had submitted.
///
/// submit() and withdraw() are a seam: a simulated pool in tests decides when its jobs run.
class worker_pool : private detail::list_hook<worker_pool> {
 public:
  /// Starts threads on demand, at most `threads`.
  explicit worker_pool(std::size_t threads = 4);
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;
  virtual ~worker_pool();

  /// Queues a job, from any thread. Jobs start in the order in which they were submitted. Throws weft::error if the
  /// pool has no thread and the system refuses one.
  virtual void submit(detail::worker_job& job);

  /// From any thread: withdraws a job of this pool that has not begun; false if it has.
  [[nodiscard]] virtual bool withdraw(detail::worker_job& job) noexcept;

  /// The process's pool, used by executors that name no other.
  [[nodiscard]] static worker_pool& shared();

  /// The process's pool for jobs that register and deregister memory, or make and destroy the resources of connections.
  /// They do not wait behind name look-ups and functions of users, which may take long on shared().
  [[nodiscard]] static worker_pool& for_resources();

 protected:
  /// Runs a job, for a simulated pool, which decides when its jobs run.
  static void run(detail::worker_job& job) noexcept { job.run(); }

 private:
  class all_pools;
  friend class detail::intrusive_list<worker_pool>;
  struct processors;

  void work() noexcept;
  void start_anew() noexcept;

  const std::size_t limit_;
  std::unique_ptr<processors> processors_;  // the processors that the threads may use
  std::mutex mutex_;
  // Incremented under the mutex to wake the threads that wait for it to change. Not a condition variable, because in
  // glibc before 2.41 its notify_one() may wake nobody when several threads wait (bug 25847).
  std::atomic<std::uint32_t> news_{0};
  detail::intrusive_list<detail::worker_job> queue_;  // oldest first
  std::size_t queued_ = 0;
  std::size_t idle_ = 0;  // threads that wait for a job
  bool closing_ = false;
  std::vector<detail::owned_thread> threads_;
};

}  // namespace weft
