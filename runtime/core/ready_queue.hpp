// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace weft::detail {

/// The ready coroutines, first come first served. Intrusive, through promise_base. With a seed it hands them out in a
/// random but repeatable order instead, so that a test can try other interleavings.
class ready_queue {
 public:
  explicit ready_queue(std::optional<std::uint64_t> seed) {
    if (seed) random_ = first_number(static_cast<std::uint32_t>(*seed ^ (*seed >> 32)));
  }
  ready_queue(const ready_queue&) = delete;
  ready_queue& operator=(const ready_queue&) = delete;

  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return pushed_ - popped_; }
  /// How many coroutines have been pushed and popped so far.
  [[nodiscard]] std::uint64_t pushed() const noexcept { return pushed_; }
  [[nodiscard]] std::uint64_t popped() const noexcept { return popped_; }

  /// Whether a task may complete an operation without being suspended; false now and then, so that others have a turn.
  [[nodiscard]] bool may_go_on() noexcept {
    constexpr unsigned most_at_once = 128;
    return ++at_once_ % most_at_once != 0;
  }

  void push(promise_base& item) noexcept {
    append(item);
    ++pushed_;
  }

  /// Removes and returns the next coroutine to resume; only if not empty().
  promise_base& pop() noexcept {
    if (random_) [[unlikely]]
      rotate(draw() % size());
    ++popped_;
    return take();
  }

 private:
  // std::minstd_rand by hand: <random> would be a tenth of what a program that includes weft parses.
  static constexpr std::uint64_t modulus = 2'147'483'647;
  static std::uint64_t first_number(std::uint32_t seed) noexcept { return seed % modulus == 0 ? 1 : seed % modulus; }
  std::size_t draw() noexcept {
    *random_ = *random_ * 48'271 % modulus;
    return static_cast<std::size_t>(*random_);
  }

  void append(promise_base& item) noexcept {
    item.next_ready_ = nullptr;
    *end_ = &item;
    end_ = &item.next_ready_;
  }
  promise_base& take() noexcept {
    promise_base& item = *first_;
    first_ = item.next_ready_;
    if (first_ == nullptr) end_ = &first_;
    return item;
  }

  [[gnu::noinline]] void rotate(std::size_t places) noexcept {
    for (; places > 0; --places) append(take());
  }

  promise_base* first_ = nullptr;
  promise_base** end_ = &first_;  // where the next one is linked
  std::uint64_t pushed_ = 0;
  std::uint64_t popped_ = 0;
  unsigned at_once_ = 0;  // how often may_go_on() was called
  std::optional<std::uint64_t> random_;
};

}  // namespace weft::detail
