// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/rails/control.hpp>

#include <cstddef>
#include <utility>
#include <vector>

namespace weft::net::rails {

/// Control messages that wait, the oldest first. The queue allocates only when more of them wait than ever before.
class control_queue {
 public:
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  void clear() noexcept { count_ = 0; }
  /// Throws std::bad_alloc.
  void push(const control& what) {
    if (count_ == all_.size()) grow();
    all_[(oldest_ + count_++) % all_.size()] = what;
  }
  [[nodiscard]] const control& pop() noexcept {
    const control& oldest = all_[oldest_];
    oldest_ = (oldest_ + 1) % all_.size();
    --count_;
    return oldest;
  }

 private:
  static constexpr std::size_t first_size = 8;

  void grow() {
    std::vector<control> larger(all_.empty() ? first_size : 2 * all_.size());
    for (std::size_t i = 0; i < count_; ++i) larger[i] = all_[(oldest_ + i) % all_.size()];
    all_ = std::move(larger);
    oldest_ = 0;
  }

  std::vector<control> all_;
  std::size_t oldest_ = 0;
  std::size_t count_ = 0;
};

}  // namespace weft::net::rails
