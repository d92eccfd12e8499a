// SPDX-License-Identifier: Apache-2.0
#include <weft/net/iwarp/crc32c.hpp>
#include <weft/net/iwarp/output_batch.hpp>

#include <algorithm>

namespace weft::net::iwarp {

output_batch::output_batch(std::size_t storage_bytes, std::size_t limit_bytes)
    : storage_(new std::byte[std::max(storage_bytes, min_storage_bytes)]),
      storage_bytes_(std::max(storage_bytes, min_storage_bytes)),
      limit_bytes_(limit_bytes) {}

std::uint32_t output_batch::crc_since(const mark& start) const noexcept {
  crc32c crc;
  // The FPDU may begin within the segment that was the last one when `start` was taken.
  std::size_t skip = start.last_bytes;
  for (std::size_t i = start.segments == 0 ? 0 : start.segments - 1; i < count_; ++i, skip = 0)
    crc.add(std::span(static_cast<const std::byte*>(segments_[i].iov_base), segments_[i].iov_len).subspan(skip));
  return crc.value();
}

void output_batch::advance(std::size_t bytes) noexcept {
  assert(bytes <= pending_bytes_);
  pending_bytes_ -= bytes;
  if (pending_bytes_ == 0) return clear();
  while (bytes >= segments_[first_].iov_len) bytes -= segments_[first_++].iov_len;
  // mutant: send again what a short send
  segments_[first_].iov_base = static_cast<std::byte*>(segments_[first_].iov_base) + bytes;
  segments_[first_].iov_len -= bytes;
}

}  // namespace weft::net::iwarp
