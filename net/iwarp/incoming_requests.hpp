// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/rdmap.hpp>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <memory>
#include <variant>

namespace weft::net::iwarp {

/// A read or an atomic operation of the peer's. As the response to a read is gathered, the read shrinks to the bytes
/// that are left. An atomic operation is executed when it is its turn to be answered.
struct incoming_request {
  std::uint32_t sequence = 0;
  std::variant<read_request, atomic_request> asked;
};

/// The peer's reads and atomic operations that wait for their responses, in their order: a ring of a fixed size.
class incoming_requests {
 public:
  /// A `size` of 0 counts as 1. Throws std::bad_alloc.
  explicit incoming_requests(std::uint32_t size)
      : size_(std::max<std::uint32_t>(size, 1)), ring_(new incoming_request[size_]) {}

  [[nodiscard]] std::uint32_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] bool is_full() const noexcept { return count_ == size_; }
  [[nodiscard]] incoming_request& front() noexcept { return ring_[first_]; }

  void push(const incoming_request& added) noexcept {
    assert(!is_full());
    ring_[(first_ + count_) % size_] = added;
    ++count_;
  }
  void pop() noexcept {
    assert(!empty());
    first_ = (first_ + 1) % size_;
    --count_;
  }
  void clear() noexcept { count_ = 0; }

 private:
  std::uint32_t size_;
  std::uint32_t first_ = 0;
  std::uint32_t count_ = 0;
  std::unique_ptr<incoming_request[]> ring_;
};

}  // namespace weft::net::iwarp
