// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabric/device.hpp>
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/remote_work.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace weft::net::fabric {

/// The keys of regions that were open to every peer, and have been closed on any thread, for a link that asks its peer
/// about them. The device is frozen once for each key. All calls but drop() and fence() come from the executor's
/// thread.
class region_mail final : private fence_audience {
 public:
  /// Collects keys; after open(), `reader` runs on the executor to take them. Call drop() before the destructor.
  region_mail(executor_core& home, const device& source, weft::detail::remote_work& reader) noexcept
      : home_(home), device_(source), reader_(reader) {
    device_.add(*this);
  }
  region_mail(const region_mail&) = delete;
  region_mail& operator=(const region_mail&) = delete;

  /// From now on the reader runs when keys arrive. It also runs once without an arrival, if keys are here already or if
  /// `in_any_case`.
  void open(bool in_any_case) noexcept {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    if (in_any_case || !keys_.empty() || unasked_ != 0) submit();
  }
  /// From now on the reader does not run.
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    is_open_ = false;
    if (std::exchange(is_submitted_, false)) home_.withdraw(reader_);
  }
  /// Notes that the reader has begun to run.
  void came() noexcept {
    const std::lock_guard lock(mutex_);
    is_submitted_ = false;
  }

  [[nodiscard]] std::vector<std::uint64_t> take() noexcept {
    const std::lock_guard lock(mutex_);
    return std::exchange(keys_, {});
  }
  /// Counts a region that the peer is not asked about, so the device stays frozen until drop().
  void leave_unasked() noexcept {
    const std::lock_guard lock(mutex_);
    ++unasked_;
  }
  [[nodiscard]] bool has_unasked() noexcept {
    const std::lock_guard lock(mutex_);
    return unasked_ != 0;
  }

  /// Takes no more keys, and thaws the device for those that are left, because the peer no longer reaches any region.
  /// After close(), maybe on a worker.
  void drop() noexcept {
    device_.remove(*this);
    const std::lock_guard lock(mutex_);
    for (std::size_t count = keys_.size() + unasked_; count != 0; --count) device_.thaw();
    keys_.clear();
    unasked_ = 0;
  }

 private:
  void fence(std::uint64_t key) noexcept override {
    const std::lock_guard lock(mutex_);
    try {
      keys_.push_back(key);
    } catch (const std::bad_alloc&) {
      ++unasked_;
    }
    if (is_open_) submit();
  }
  void submit() noexcept {
    if (!std::exchange(is_submitted_, true)) home_.submit(reader_);
  }

  executor_core& home_;
  const device& device_;
  weft::detail::remote_work& reader_;

  std::mutex mutex_;                 // guards what follows
  std::vector<std::uint64_t> keys_;  // of regions that were closed
  std::size_t unasked_ = 0;          // regions about which the peer is not asked: the link ends, or memory is short
  bool is_open_ = false;
  bool is_submitted_ = false;  // the reader is submitted, and has not begun to run
};

}  // namespace weft::net::fabric
