// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/slice.hpp>
#include <weft/net/link/live_statistics.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/link/transport.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace weft::net {

class transfer;

/// One operation as the link sees it, from post() to completed(). The link's corner follows the record in memory.
///
/// Who may touch the operation's memory, and who holds memory that comes from the pool:
///   free      nobody; the record is in sending::free_
///   posted    the transport; `waiter` holds it, and the completion resumes the waiter
///   orphaned  the transport; the waiter was stopped or destroyed, and has left the memory here until the completion
struct operation_record : work_request {
  operation_record* next_free = nullptr;
  transfer* waiter = nullptr;  // null while the record is free or orphaned
  mr::buffer owned;            // an orphan's memory
  mr::pin pin;                 // pins an orphan's memory
  // The slices of `segments`, copied because the user may change the list once the operation is posted.
  std::array<mr::slice, max_segments> parts{};
  std::array<named_place, mr::max_fabrics> all_names;  // what `names` refers to
  bool borrowed = false;                               // the regions of its segments are pinned
  trailer::storage trailer_bytes{};
  live_statistics::operations* counted = nullptr;  // the counters of its kind, or sending::uncounted_
  std::uint64_t answer = 0;                        // bytes read by a flush, or the previous value of an atomic
  std::uint32_t counter = 0;                       // transfer::counter_ of an orphan
};

/// The records of the operations that a connection may post to its link. They are made a few at a time, on demand,
/// because most connections never use them all, and complete tables would be most of the cost of an idle connection.
/// Records never move.
class operation_table {
 public:
  static constexpr std::size_t step = 6;

  /// Makes a table of at most `limit` records, each with a corner for `target`, which must outlive the table. Throws
  /// std::bad_alloc.
  operation_table(link& target, std::size_t limit)
      : link_(&target), stride_(round_up(sizeof(operation_record) + target.corner_bytes())), limit_(limit) {
    blocks_.reserve((limit + step - 1) / step);
    if (!provide()) throw std::bad_alloc();  // the first records are then made without allocating
  }
  operation_table(const operation_table&) = delete;
  operation_table& operator=(const operation_table&) = delete;
  ~operation_table() {
    for (std::size_t i = 0; i < made_; ++i) (*this)[i].~operation_record();
  }

  /// The most records that there may be, and the number made so far.
  [[nodiscard]] std::size_t limit() const noexcept { return limit_; }
  [[nodiscard]] std::size_t made() const noexcept { return made_; }

  /// Makes a few more records. False if the limit is reached, or memory is short.
  [[nodiscard]] bool grow() noexcept {
    if (made_ == limit_ || !provide()) return false;
    const std::size_t wanted = std::min(blocks_.size() * step, limit_);  // all that there is room for
    const std::size_t before = made_;
    while (made_ != wanted && make_next()) ++made_;
    return made_ != before;
  }

  /// The record at `place`, which must have been made.
  [[nodiscard]] operation_record& operator[](std::size_t place) noexcept {
    return *reinterpret_cast<operation_record*>(blocks_[place / step].get() + place % step * stride_);
  }

 private:
  static constexpr std::align_val_t alignment{corner_alignment};
  struct deallocate {
    void operator()(std::byte* memory) const noexcept { ::operator delete(memory, alignment); }
  };
  using block = std::unique_ptr<std::byte, deallocate>;
  static_assert(sizeof(operation_record) % corner_alignment == 0 && alignof(operation_record) <= corner_alignment);

  [[nodiscard]] bool make_next() noexcept {
    auto* const item = ::new (&(*this)[made_]) operation_record;
    item->slot = static_cast<std::uint16_t>(made_);
    item->corner = reinterpret_cast<std::byte*>(item) + sizeof(operation_record);
    if (link_->furnish(*item)) return true;
    item->~operation_record();
    return false;
  }
  // Provides room for the next record. False if memory is short.
  [[nodiscard]] bool provide() noexcept {
    if (blocks_.size() * step > made_) return true;
    block more(static_cast<std::byte*>(::operator new(step* stride_, alignment, std::nothrow)));
    if (more == nullptr) return false;
    blocks_.push_back(std::move(more));
    return true;
  }
  [[nodiscard]] static constexpr std::size_t round_up(std::size_t bytes) noexcept {
    return (bytes + corner_alignment - 1) / corner_alignment * corner_alignment;
  }

  link* link_;
  std::size_t stride_;
  std::size_t limit_;
  std::size_t made_ = 0;
  std::vector<block> blocks_;
};

}  // namespace weft::net
