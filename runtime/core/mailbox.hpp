// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/birthplace.hpp>
#include <weft/runtime/core/remote_work.hpp>

#include <atomic>
#include <thread>

namespace weft::detail {

/// The work that other threads have sent to an executor, its owner. Calls come from the owner's thread, unless their
/// comment says otherwise.
class mailbox {
 public:
  /// Counts a thread that uses the mailbox or its executor, because the work that it has pushed may end the executor
  /// before the thread has left. From any thread.
  class visitor {
   public:
    explicit visitor(mailbox& where) noexcept : where_(where) {
      where.visitors_.fetch_add(1, std::memory_order_seq_cst);
    }
    visitor(const visitor&) = delete;
    visitor& operator=(const visitor&) = delete;
    ~visitor() { where_.visitors_.fetch_sub(1, std::memory_order_release); }

   private:
    mailbox& where_;
  };

  /// Adds `work`. From any thread, by a visitor. `work` may be gone when push() returns.
  void push(remote_work& work) noexcept {
    work.next_ = posted_.load(std::memory_order_relaxed);
    while (!posted_.compare_exchange_weak(work.next_, &work, std::memory_order_seq_cst, std::memory_order_relaxed)) {
    }
  }

  /// Whether there is mail. A cheap look, which may miss mail that is being pushed.
  [[nodiscard]] bool seems_full() const noexcept {
    return inbox_ != nullptr || posted_.load(std::memory_order_relaxed) != nullptr;
  }
  /// Whether there is no mail: the last look before sleeping, after the owner has published that it sleeps.
  [[nodiscard]] bool empty() const noexcept {
    return inbox_ == nullptr && posted_.load(std::memory_order_seq_cst) == nullptr;
  }

  /// Takes what was pushed, so that pop() finds it.
  void take() noexcept;
  /// Removes and returns the oldest work that was taken; null if there is none.
  [[nodiscard]] remote_work* pop() noexcept {
    remote_work* const work = inbox_;
    if (work != nullptr) inbox_ = work->next_;
    return work;
  }
  /// Whether pop() finds something.
  [[nodiscard]] bool has_taken() const noexcept { return inbox_ != nullptr; }
  /// Removes `work` if it has come; else false.
  [[nodiscard]] bool remove(remote_work& work) noexcept;

  /// From any thread: whether the owner has ended, and has not been started again.
  [[nodiscard]] bool is_closed() const noexcept { return closed_.load(std::memory_order_seq_cst); }
  void open() noexcept { closed_.store(false, std::memory_order_relaxed); }
  /// Closes the mailbox. A visitor that has found it open may still push; all mail has come once no visitor is left.
  void close() noexcept { closed_.store(true, std::memory_order_seq_cst); }
  /// Waits until no visitor is left. Does not wait in a child of fork(2), where their threads do not exist.
  void await_visitors(const birthplace& owner) const noexcept {
    while (visitors_.load(std::memory_order_seq_cst) != 0 && !owner.is_parents()) std::this_thread::yield();
  }

 private:
  std::atomic<remote_work*> posted_{nullptr};  // newest first; taken whole by the owner
  remote_work* inbox_ = nullptr;               // taken, oldest first
  std::atomic<unsigned> visitors_{0};
  std::atomic<bool> closed_{false};
};

inline void mailbox::take() noexcept {
  if (posted_.load(std::memory_order_relaxed) == nullptr) return;  // the usual case, without a locked instruction
  remote_work* newest = posted_.exchange(nullptr, std::memory_order_acquire);
  remote_work* oldest = nullptr;
  while (newest != nullptr) {
    remote_work* const next = newest->next_;
    newest->next_ = oldest;
    oldest = newest;
    newest = next;
  }
  remote_work** end = &inbox_;
  while (*end != nullptr) end = &(*end)->next_;
  *end = oldest;
}

inline bool mailbox::remove(remote_work& work) noexcept {
  take();
  remote_work** place = &inbox_;
  while (*place != nullptr && *place != &work) place = &(*place)->next_;
  if (*place == nullptr) return false;
  *place = work.next_;
  return true;
}

}  // namespace weft::detail
