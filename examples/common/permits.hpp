// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/sync/semaphore.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <utility>

namespace common {

/// Permits of a semaphore, which go back when this goes. Move-only.
class permits {
 public:
  permits() noexcept = default;
  permits(permits&& other) noexcept
      : from_(std::exchange(other.from_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  permits& operator=(permits&& other) noexcept {
    permits(std::move(other)).swap(*this);
    return *this;
  }
  ~permits() {
    if (from_ != nullptr) from_->release(count_);
  }

  /// Waits for them.
  [[nodiscard]] static weft::task<permits> take(weft::semaphore& from, std::size_t count = 1) {
    co_await from.acquire(count);
    co_return permits(from, count);
  }

 private:
  permits(weft::semaphore& from, std::size_t count) noexcept : from_(&from), count_(count) {}
  void swap(permits& other) noexcept {
    std::swap(from_, other.from_);
    std::swap(count_, other.count_);
  }

  weft::semaphore* from_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace common
