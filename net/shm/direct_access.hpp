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

  /// A range that this end may use.
  struct range {
    std::uint32_t key;
    std::uint32_t number;
    std::uint64_t address;  // of the first byte, in the peer's terms
    std::uint64_t length;
    std::uint8_t rights;  // flags of the record
    std::byte* first;
    mr::mapping file;

    /// Null if the range does not cover the access: the owner has to refuse it.
    [[nodiscard]] std::byte* at(std::uint64_t address, std::uint64_t bytes, right wanted) const noexcept;
  };

  /// `own` and `other` are this end's words and the peer's, and outlive it.
  direct_access(end_words& own, const end_words& other) noexcept : own_(own), other_(other) {}

  /// The peer offers memory, and has sent `file` for it; an empty `file` means that this process had no descriptor
  /// left. Returns what is wrong with the offer; null if nothing is, and an answer is owed.
  [[nodiscard]] const char* consider(const record& offer, const offered_memory& where, descriptor file) noexcept;
  /// The peer has ended a loan. Returns what is wrong with that, or null.
  [[nodiscard]] const char* give_back(std::uint32_t number) noexcept;
  /// This end does not use that key any more.
  void forget(std::uint32_t key) noexcept;

  [[nodiscard]] range* find(std::uint64_t key) noexcept;

  /// For an access to a range.
  [[nodiscard]] loan_visit visit(const range& where) const noexcept {
    static_assert(loan_visit::open == end_words::open);
    return {own_.turn, other_.lent[where.number]};
  }
  /// Where all of that is mapped, and what may be done with it.
  [[nodiscard]] direct_place place(std::uint64_t key, std::uint64_t address, std::uint64_t bytes) noexcept;

  /// The next answer that is owed to the peer. To be followed by answered() once it is in the ring.
  [[nodiscard]] std::optional<record> next_answer() const noexcept;
  void answered(const record& what) noexcept;

 private:
  [[nodiscard]] bool adopt(const record& offer, const offered_memory& where, const descriptor& file) noexcept;
  void drop(std::uint32_t number) noexcept;

  end_words& own_;
  const end_words& other_;
  std::array<std::unique_ptr<range>, max_loans> ranges_;  // by their numbers
  std::array<std::uint32_t, max_loans> order_{};          // the numbers of all ranges, first that of the last one used
  std::size_t count_ = 0;
  std::uint64_t mapped_bytes_ = 0;  // never more than the machine has
  // By number, a bit each: answers that are owed.
  std::uint64_t taken_ = 0;
  std::uint64_t declined_ = 0;
  std::uint64_t returned_ = 0;
};

}  // namespace weft::net::shm
