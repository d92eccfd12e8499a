// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <deque>

namespace kv {

/// Which parts of a memory are taken by records, in the order in which they were appended. The book alone: it looks at
/// no memory. A record lies in one piece, and its place is used anew once it is the oldest and is dropped.
class record_ring {
 public:
  struct record {
    std::uint64_t offset;  ///< a multiple of `alignment`
    std::uint64_t stamp;   ///< of all that were ever appended
    std::uint64_t hash;    ///< of its key
    std::uint64_t bytes;
  };
  static constexpr std::size_t alignment = 8;

  explicit record_ring(std::uint64_t capacity) noexcept : capacity_(capacity / alignment * alignment) {}

  [[nodiscard]] std::uint64_t capacity() const noexcept { return capacity_; }
  /// In one piece or two.
  [[nodiscard]] std::uint64_t free_bytes() const noexcept {
    if (records_.empty()) return capacity_;
    return wraps() ? first() - next_ : capacity_ - next_ + first();
  }
  /// Whether a record of so many bytes can be appended now.
  [[nodiscard]] bool fits(std::uint64_t bytes) const noexcept {
    if (records_.empty()) return bytes <= capacity_;
    return wraps() ? bytes <= first() - next_ : bytes <= capacity_ - next_ || bytes <= first();
  }
  /// Appends one that fits, and yields where it lies.
  std::uint64_t append(std::uint64_t bytes, std::uint64_t stamp, std::uint64_t hash) {
    assert(fits(bytes));
    if (records_.empty() || (!wraps() && bytes > capacity_ - next_)) next_ = 0;
    records_.push_back({.offset = next_, .stamp = stamp, .hash = hash, .bytes = bytes});
    next_ += (bytes + alignment - 1) / alignment * alignment;
    return records_.back().offset;
  }
  /// Of a ring with records.
  [[nodiscard]] const record& oldest() const noexcept { return records_.front(); }
  void drop_oldest() noexcept { records_.pop_front(); }

 private:
  [[nodiscard]] std::uint64_t first() const noexcept { return records_.front().offset; }
  /// Whether the newest lies before the oldest, so that what is free lies between them.
  [[nodiscard]] bool wraps() const noexcept { return next_ <= first(); }

  std::uint64_t capacity_;
  std::uint64_t next_ = 0;  // behind the newest
  std::deque<record> records_;
};

}  // namespace kv
