// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/crc32c.hpp>
#include <weft/net/iwarp/output_batch.hpp>

#include <algorithm>
#include <cassert>
#include <cstring>

namespace weft::net::iwarp {

output_batch::output_batch(std::size_t storage_bytes, std::size_t limit_bytes)
    : storage_(new std::byte[std::max(storage_bytes, min_storage_bytes)]),
      storage_bytes_(std::max(storage_bytes, min_storage_bytes)),
      limit_bytes_(limit_bytes) {}

output_batch::mark output_batch::here() const noexcept {
  return {.segments = count_,
          .last_bytes = count_ == 0 ? 0 : segments_[count_ - 1].iov_len,
          .used = used_,
          .pending = pending_bytes_};
}

void output_batch::rewind(const mark& to) noexcept {
  count_ = to.segments;
  if (count_ != 0) segments_[count_ - 1].iov_len = to.last_bytes;
  used_ = to.used;
  pending_bytes_ = to.pending;
}

std::uint32_t output_batch::crc_since(const mark& start) const noexcept {
  crc32c crc;
  // The first piece may have extended the segment before.
  std::size_t skip = start.last_bytes;
  for (std::size_t i = start.segments == 0 ? 0 : start.segments - 1; i < count_; ++i, skip = 0)
    crc.add(std::span(static_cast<const std::byte*>(segments_[i].iov_base), segments_[i].iov_len).subspan(skip));
  return crc.value();
}

void output_batch::clear() noexcept {
  used_ = 0;
  first_ = 0;
  count_ = 0;
  pending_bytes_ = 0;
}

std::byte* output_batch::append(std::size_t bytes) noexcept {
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

void output_batch::append(std::span<const std::byte> bytes) noexcept {
  std::memcpy(append(bytes.size()), bytes.data(), bytes.size());
}

void output_batch::refer(std::span<const std::byte> bytes) noexcept {
  assert(count_ < max_segments);
  // sendmsg(2) only reads; iovec has no const.
  segments_[count_++] = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  pending_bytes_ += bytes.size();
}

void output_batch::advance(std::size_t bytes) noexcept {
  assert(bytes <= pending_bytes_);
  pending_bytes_ -= bytes;
  if (pending_bytes_ == 0) return clear();
  while (bytes >= segments_[first_].iov_len) bytes -= segments_[first_++].iov_len;
  segments_[first_].iov_base = static_cast<std::byte*>(segments_[first_].iov_base) + bytes;
  segments_[first_].iov_len -= bytes;
}

}  // namespace weft::net::iwarp
