// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

namespace weft::net::iwarp {

/// FPDUs that are sent together, by one sendmsg(2) or, after a short send, by several. Headers, trailers, read
/// responses and small payloads lie in storage of the batch; most large payloads are only referred to.
///
/// A batch is large, and needed only while sending. So an executor_state keeps a few batches, and lends one to a
/// connection that has output, until all of its output is sent, or until engine::abandon().
class output_batch {
 public:
  static constexpr std::size_t max_segments = 1024;  // IOV_MAX, see sendmsg(2)
  static constexpr std::size_t min_storage_bytes = 4096;

  /// Makes an empty batch with `storage_bytes` of storage, at least min_storage_bytes. engine::gather() adds no more
  /// FPDUs once the batch holds `limit_bytes`. Throws std::bad_alloc.
  explicit output_batch(std::size_t storage_bytes = 131'072, std::size_t limit_bytes = 524'288);

  output_batch(const output_batch&) = delete;
  output_batch& operator=(const output_batch&) = delete;

  /// The bytes still to be sent, for msghdr::msg_iov. Valid until the next engine call with this batch.
  [[nodiscard]] std::span<iovec> pending() noexcept { return {segments_.data() + first_, count_ - first_}; }
  [[nodiscard]] std::size_t pending_bytes() const noexcept { return pending_bytes_; }
  [[nodiscard]] bool empty() const noexcept { return pending_bytes_ == 0; }

 private:
  friend class engine;

  /// The state of the batch just before an FPDU is added.
  struct mark {
    std::size_t segments = 0;
    std::size_t last_bytes = 0;  // length of the last segment, which the FPDU may extend
    std::size_t used = 0;
    std::size_t pending = 0;
  };

  [[nodiscard]] mark here() const noexcept;
  void rewind(const mark& to) noexcept;
  [[nodiscard]] std::uint32_t crc_since(const mark& start) const noexcept;
  void clear() noexcept;

  /// Adds the next `bytes` of the storage to the pending bytes, and returns where they lie.
  std::byte* append(std::size_t bytes) noexcept;
  void append(std::span<const std::byte> bytes) noexcept;
  /// Adds memory of the caller's to the pending bytes, without a copy.
  void refer(std::span<const std::byte> bytes) noexcept;

  [[nodiscard]] std::size_t storage_room() const noexcept { return storage_bytes_ - used_; }
  [[nodiscard]] std::size_t segment_room() const noexcept { return max_segments - count_; }
  [[nodiscard]] bool is_full() const noexcept { return pending_bytes_ >= limit_bytes_; }

  /// Removes the first `bytes`, which have been sent.
  void advance(std::size_t bytes) noexcept;

  std::unique_ptr<std::byte[]> storage_;
  std::size_t storage_bytes_;
  std::size_t limit_bytes_;
  std::size_t used_ = 0;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t pending_bytes_ = 0;
  std::array<iovec, max_segments> segments_;
};

// Inline, because they run for every FPDU.

inline output_batch::mark output_batch::here() const noexcept {
  return {.segments = count_,
          .last_bytes = count_ == 0 ? 0 : segments_[count_ - 1].iov_len,
          .used = used_,
          .pending = pending_bytes_};
}

inline void output_batch::rewind(const mark& to) noexcept {
  count_ = to.segments;
  if (count_ != 0) segments_[count_ - 1].iov_len = to.last_bytes;
  used_ = to.used;
  pending_bytes_ = to.pending;
}

inline void output_batch::clear() noexcept {
  used_ = 0;
  first_ = 0;
  count_ = 0;
  pending_bytes_ = 0;
}

inline std::byte* output_batch::append(std::size_t bytes) noexcept {
  assert(bytes <= storage_room());
  std::byte* const place = storage_.get() + used_;
  used_ += bytes;
  pending_bytes_ += bytes;
  iovec* const last = count_ == 0 ? nullptr : &segments_[count_ - 1];
  if (last != nullptr && static_cast<std::byte*>(last->iov_base) + last->iov_len == place) {
    last->iov_len += bytes;
  } else {
    assert(count_ < max_segments);
    segments_[count_++] = {.iov_base = place, .iov_len = bytes};
  }
  return place;
}

inline void output_batch::append(std::span<const std::byte> bytes) noexcept {
  std::memcpy(append(bytes.size()), bytes.data(), bytes.size());
}

inline void output_batch::refer(std::span<const std::byte> bytes) noexcept {
  assert(count_ < max_segments);
  // sendmsg(2) only reads; iovec has no const.
  segments_[count_++] = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  pending_bytes_ += bytes.size();
}

}  // namespace weft::net::iwarp
