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

  /// Called once, on a worker thread. The job may be gone as soon as run() has made its result known.
  virtual void run() noexcept = 0;

 private:
  friend class weft::worker_pool;
};

}  // namespace detail

/// A bounded number of threads for what would block an executor: registration, files, name resolution, hashing.
/// Threads start when they are first needed, on any processor that the thread which made the pool may use, even where
/// the one that needs them is pinned to its own. The destructor waits for the job in hand of every thread.
///
/// A child of fork(2) has a copy of the pool without its threads: it starts threads of its own when it needs them, and
/// what the parent had submitted is not run there.
///
/// submit() and withdraw() are a seam: a simulated pool decides when its jobs run, on a thread that runs no executor.
class worker_pool : private detail::list_hook<worker_pool> {
 public:
  /// Starts no thread before it is needed, and at most so many.
  explicit worker_pool(std::size_t threads = 4);
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;
  virtual ~worker_pool();

  /// From any thread. Jobs start in the order in which they were submitted.
  virtual void submit(detail::worker_job& job);

  /// From any thread: takes a job back that no thread has begun; false if one has.
  [[nodiscard]] virtual bool withdraw(detail::worker_job& job) noexcept;

  /// The process's own, used by executors that name no other.
  [[nodiscard]] static worker_pool& shared();

  /// The process's own for what registers and deregisters memory, and makes and destroys what connections use. These
  /// jobs do not wait behind name servers and the functions of users, which may take their time on shared().
  [[nodiscard]] static worker_pool& for_resources();

 protected:
  /// For a simulated pool, which decides when its jobs run.
  static void run(detail::worker_job& job) noexcept { job.run(); }

 private:
  class all_pools;
  friend class detail::intrusive_list<worker_pool>;
  struct processors;

  void work() noexcept;
  void start_anew() noexcept;

  const std::size_t limit_;
  std::unique_ptr<processors> processors_;  // that the threads may use
  std::mutex mutex_;
  // Another number, under the mutex, whenever there is news for threads that wait for it to change. Not a condition
  // variable: those of glibc before 2.41 lose the wake-up of notify_one() where several threads wait (its bug 25847).
  std::atomic<std::uint32_t> news_{0};
  detail::intrusive_list<detail::worker_job> queue_;  // oldest first
  std::size_t queued_ = 0;
  std::size_t idle_ = 0;  // threads that wait for a job
  bool closing_ = false;
  std::vector<detail::owned_thread> threads_;
};

}  // namespace weft
