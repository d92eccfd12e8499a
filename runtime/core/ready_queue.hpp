// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>

namespace weft::detail {

/// The coroutines that can go on, first come first served. Intrusive, through promise_base.
/// With a seed it hands them out in a random but repeatable order instead, so that a test can try other interleavings.
class ready_queue {
 public:
  explicit ready_queue(std::optional<std::uint64_t> seed) {
    if (seed) random_.emplace(static_cast<std::minstd_rand::result_type>(*seed ^ (*seed >> 32)));
  }
  ready_queue(const ready_queue&) = delete;
  ready_queue& operator=(const ready_queue&) = delete;

  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

  void push(promise_base& item) noexcept {
    *end_ = &item;
    end_ = &item.next_ready_;
    ++size_;
  }

  /// The next to resume; only if not empty().
  promise_base& pop() noexcept {
    if (random_) rotate((*random_)() % size_);
    return take();
  }

 private:
  promise_base& take() noexcept {
    promise_base& item = *first_;
    first_ = item.next_ready_;
    if (--size_ == 0) end_ = &first_;
    return item;
  }

  void rotate(std::size_t places) noexcept {
    for (; places > 0; --places) push(take());
  }

  promise_base* first_ = nullptr;  // if not empty
  promise_base** end_ = &first_;   // where the next one is entered
  std::size_t size_ = 0;
  std::optional<std::minstd_rand> random_;
};

}  // namespace weft::detail
