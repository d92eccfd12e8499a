// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/system/mapping.hpp>
#include <weft/net/link/direct_place.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/shm/ring.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace weft::net::shm {

/// Memory that the peer has lent to this end, which has it mapped; direct_loans is the lender's side.
///
/// The description of a loan was copied before it was checked, and its file cannot shrink, so the peer cannot make this
/// end access anything beyond it. An access that no loan covers is left to the owner, who executes or refuses it.
class direct_access {
 public:
  enum class right : std::uint8_t { read, write, atomic };

  /// The memory of one loan, which this end has mapped.
  struct range {
    std::uint32_t key;
    std::uint32_t number;
    std::uint64_t address;  // the peer's address of the first byte
    std::uint64_t length;
    std::uint8_t rights;  // record::readable, writable and atomic
    std::byte* first;
    mr::mapping file;

    /// Where the access lies in this process; null if the loan does not allow it: then it is left to the owner.
    [[nodiscard]] std::byte* at(std::uint64_t address, std::uint64_t bytes, right wanted) const noexcept;
  };

  /// `own` and `other` are this end's words and the peer's, and must outlive this object.
  direct_access(end_words& own, const end_words& other) noexcept : own_(own), other_(other) {}

  /// Maps the memory that the peer offers, or declines it. `file` came with the offer; it is empty if this process had
  /// no descriptor left for it. Returns what is wrong with the offer, or null; then an answer is owed.
  [[nodiscard]] const char* consider(const record& offer, const offered_memory& where, descriptor file) noexcept;
  /// Unmaps a loan that the peer has ended. Returns what is wrong with `number`, or null; then an answer is owed.
  [[nodiscard]] const char* give_back(std::uint32_t number) noexcept;
  /// Unmaps the loan of a key that this end does not use any more.
  void forget(std::uint32_t key) noexcept;

  [[nodiscard]] range* find(std::uint64_t key) noexcept;

  /// Begins an access to a range.
  [[nodiscard]] loan_visit visit(const range& where) const noexcept {
    static_assert(loan_visit::open == end_words::open);
    return {own_.turn, other_.lent[where.number]};
  }
  /// Where the `bytes` bytes at `address` are mapped, and the rights; `first` is null if they are not all mapped, or
  /// may be neither read nor written.
  [[nodiscard]] direct_place place(std::uint64_t key, std::uint64_t address, std::uint64_t bytes) noexcept;

  /// The next answer that is owed to the peer, or empty. To be followed by answered() once the answer is in the ring.
  [[nodiscard]] std::optional<record> next_answer() const noexcept;
  void answered(const record& what) noexcept;

 private:
  [[nodiscard]] bool adopt(const record& offer, const offered_memory& where, const descriptor& file) noexcept;
  void drop(std::uint32_t number) noexcept;

  end_words& own_;
  const end_words& other_;
  std::array<std::unique_ptr<range>, max_loans> ranges_;  // by their numbers
  std::array<std::uint32_t, max_loans> order_{};          // the numbers of all ranges; find() swaps its result to [0]
  std::size_t count_ = 0;
  std::uint64_t mapped_bytes_ = 0;  // the bytes of all mappings, at most the machine's memory
  // The answers that are owed: one bit for each loan, by its number.
  std::uint64_t taken_ = 0;
  std::uint64_t declined_ = 0;
  std::uint64_t returned_ = 0;
};

}  // namespace weft::net::shm
