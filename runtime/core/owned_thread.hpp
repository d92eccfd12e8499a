// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/birthplace.hpp>

#include <pthread.h>

#include <cassert>
#include <utility>

namespace weft::detail {

/// A thread that its owner must join. A child of fork(2) has a copy of the owner, but not of the thread: there joining
/// does nothing, where std::thread would wait for ever. The object has no memory on the heap that a child could leak.
class owned_thread {
 public:
  owned_thread() noexcept = default;
  owned_thread(owned_thread&& other) noexcept
      : thread_(other.thread_), forks_(other.forks_), runs_(std::exchange(other.runs_, false)) {}
  owned_thread& operator=(owned_thread&& other) noexcept {
    assert(!joinable() && "a thread was replaced before it was joined");
    thread_ = other.thread_;
    forks_ = other.forks_;
    runs_ = std::exchange(other.runs_, false);
    return *this;
  }
  ~owned_thread() { assert(!joinable() && "a thread was let go before it was joined"); }

  /// Starts a thread that calls `(object.*Body)()`. Throws the system's error if it cannot be started.
  template <auto Body, class T>
  [[nodiscard]] static owned_thread run(T& object) {
    const auto body = [](void* self) -> void* {
      (static_cast<T*>(self)->*Body)();
      return nullptr;
    };
    return owned_thread(body, &object);
  }

  /// False also in a child of the process that started the thread.
  [[nodiscard]] bool joinable() const noexcept { return runs_ && forks.load(std::memory_order_relaxed) == forks_; }
  void join() noexcept {
    if (joinable()) ::pthread_join(thread_, nullptr);
    runs_ = false;
  }
  [[nodiscard]] pthread_t native_handle() const noexcept { return thread_; }

 private:
  owned_thread(void* (*body)(void*), void* argument);

  pthread_t thread_{};
  unsigned forks_ = 0;
  bool runs_ = false;
};

}  // namespace weft::detail
