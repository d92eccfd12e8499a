// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/net/software/kernel_copy.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace weft::net::shm {

/// The link's state of a posted request, in its work_request::corner.
struct posted_request {
  work_request* work = nullptr;
  posted_request* next = nullptr;
  std::uint64_t bytes = 0;   ///< length of the whole request
  std::uint64_t moved = 0;   ///< bytes that are in the ring, or were answered, accessed directly or copied by the peer
  std::uint32_t number = 0;  ///< if `numbered`: index among the requests that this end has sent, modulo 2^32
  bool numbered = false;     ///< true once the request's first record is in the ring; not if this end executes it
  bool done = false;
  bool far = false;  ///< the peer copies the payload, and answers with a `copied`
};

/// The requests that have not completed, oldest first.
class posted_requests {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  [[nodiscard]] posted_request& oldest() const noexcept { return *first_; }
  [[nodiscard]] bool oldest_is_done() const noexcept { return first_ != nullptr && first_->done; }
  /// The oldest request, if all its records are in the ring or it has been executed; else null.
  [[nodiscard]] posted_request* oldest_sent() const noexcept { return first_ != unsent_ ? first_ : nullptr; }
  /// The oldest request whose payload the peer has yet to copy; null if there is none.
  [[nodiscard]] posted_request* oldest_far() const noexcept {
    posted_request* item = first_;
    while (item != unsent_ && (item->done || !item->far)) item = item->next;
    return item != unsent_ ? item : nullptr;
  }
  /// The oldest request that has neither been executed nor put into the ring with all its records; null if none.
  [[nodiscard]] posted_request* unsent() const noexcept { return unsent_; }

  void add(posted_request& item) noexcept {
    item.next = nullptr;
    (first_ != nullptr ? last_->next : first_) = &item;
    last_ = &item;
    if (unsent_ == nullptr) unsent_ = &item;
  }
  /// Numbers a request whose first record is in the ring.
  void number(posted_request& item) noexcept {
    item.number = count_++;
    item.numbered = true;
  }
  /// Counts a request that is sent without being posted.
  void count_one() noexcept { ++count_; }
  void unsent_is_sent() noexcept { unsent_ = unsent_->next; }
  posted_request& take_oldest() noexcept {
    assert(first_ != unsent_ && "a request was completed that had not been sent");
    return *std::exchange(first_, first_->next);
  }

 private:
  posted_request* first_ = nullptr;
  posted_request* unsent_ = nullptr;
  posted_request* last_ = nullptr;
  std::uint32_t count_ = 0;  // number of requests sent so far, modulo 2^32; the peer counts them too
};

[[nodiscard]] inline record_kind record_of(work_kind kind) noexcept {
  switch (kind) {
    case work_kind::send:
      return record_kind::send;
    case work_kind::write:
      return record_kind::write;
    case work_kind::read:
      return record_kind::read;
    case work_kind::fetch_add:
      return record_kind::fetch_add;
    case work_kind::compare_swap:
    case work_kind::flush:  // never posted without capabilities::device_flush
      break;
  }
  return record_kind::compare_swap;
}

/// Whether a request asks for an answer with data.
[[nodiscard]] inline bool is_query(const work_request& work) noexcept {
  return work.kind != work_kind::send && work.kind != work_kind::write;
}

/// The header of a read's record, or an atomic operation's.
[[nodiscard]] inline record query_of(const work_request& work, std::uint64_t bytes) noexcept {
  return {.kind = record_of(work.kind),
          .total = bytes,
          .address = work.remote_address,
          .key = static_cast<std::uint32_t>(work.remote_key)};
}

/// The header of the first record of a message or a write.
[[nodiscard]] inline record delivery_of(const work_request& work, std::uint64_t bytes) noexcept {
  record header = query_of(work, bytes);
  header.kind = work.kind == work_kind::send ? record_kind::send : record_kind::write;
  if (work.immediate) header.flags |= record::immediate;
  if (work.invalidate) header.flags |= record::invalidates;
  header.number = work.immediate.value_or(0);
  if (work.invalidate) header.key = static_cast<std::uint32_t>(*work.invalidate);
  return header;
}

/// Calls visit(memory, may_shrink) for the parts of a request's memory that hold `bytes` bytes from offset `from` on.
/// Returns false as soon as visit() does.
template <class Visit>
bool visit_parts(const software::domain& home, const work_request& work, std::uint64_t from, std::uint64_t bytes,
                 const Visit& visit) {
  const auto part = [&](std::span<std::byte> memory, bool may_shrink) {
    if (from != 0) [[unlikely]] {
      const std::uint64_t skipped = std::min<std::uint64_t>(from, memory.size());
      from -= skipped;
      memory = memory.subspan(skipped);
    }
    memory = memory.first(std::min<std::uint64_t>(bytes, memory.size()));
    bytes -= memory.size();
    return memory.empty() || visit(memory, may_shrink);
  };
  for (const mr::slice& segment : work.segments) {
    if (!part(segment.bytes(), home.may_shrink(*segment.record()))) return false;
  }
  return part(work.own, false);
}

/// Copies `what` into a request's memory, from offset `from` on. False if a file behind the memory has become shorter.
inline bool scatter(const software::domain& home, const work_request& work, std::uint64_t from,
                    std::span<const std::byte> what) {
  return visit_parts(home, work, from, what.size(), [&what](std::span<std::byte> part, bool may_shrink) {
    const std::span<const std::byte> source = what.first(part.size());
    what = what.subspan(part.size());
    if (may_shrink) return software::copy_into(part, source);
    std::memcpy(part.data(), source.data(), part.size());
    return true;
  });
}

}  // namespace weft::net::shm
