// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace weft::net {

/// One access to memory that a peer of the same machine has lent. Before the peer takes the memory back, it waits for
/// the end of the visit: keep the visit short.
class loan_visit {
 public:
  /// The value of the peer's word while the memory may be used.
  static constexpr std::uint32_t open = 1;

  /// Begins the visit. `turn` is this end's counter, odd during a visit; `lent` is the peer's word for the loan.
  loan_visit(std::atomic<std::uint64_t>& turn, const std::atomic<std::uint32_t>& lent) noexcept : turn_(turn) {
    // This end makes the turn odd before it looks whether the loan is open. The owner shuts the loan before it looks at
    // the turn. So at least one of them sees what the other has done.
    turn_.store(turn_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
    open_ = lent.load(std::memory_order_seq_cst) == open;
  }
  loan_visit(const loan_visit&) = delete;
  loan_visit& operator=(const loan_visit&) = delete;
  ~loan_visit() { turn_.store(turn_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  /// Whether the memory may be used.
  [[nodiscard]] bool is_open() const noexcept { return open_; }

 private:
  std::atomic<std::uint64_t>& turn_;
  bool open_;
};

/// The state of a link's direct_places, which says whether they may be used. It lives as long as the link.
struct direct_gate {
  std::uint64_t version = 0;  ///< changes whenever a place is added or removed
  bool is_behind = false;     ///< the peer may not have executed all earlier writes yet
};

/// Where a part of the peer's memory is mapped in this process, if it is: the result of link::find_direct(). Valid as
/// long as direct_gate::version stays the same.
struct direct_place {
  std::byte* first = nullptr;                        ///< its first byte in this process; null: it is not mapped
  std::uint64_t bytes = 0;                           ///< how many bytes are mapped from there on
  bool may_read = false;                             ///< usage::read_src
  bool may_write = false;                            ///< usage::write_dst
  std::atomic<std::uint64_t>* turn = nullptr;        ///< for loan_visit
  const std::atomic<std::uint32_t>* lent = nullptr;  ///< for loan_visit
};

}  // namespace weft::net
