// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>

#include "kit/standard.hpp"

// What must be true of a run, kept up beside it.
namespace weft::sim {

/// The byte at a position of what has this key: it differs from one key to the next and from any shift of itself.
[[nodiscard]] inline std::byte pattern(std::uint64_t key, std::size_t position) noexcept {
  return static_cast<std::byte>((key * 37 + position * 7 + (position >> 8) * 13 + (key >> 8)) & 0xFF);
}
inline void fill(std::span<std::byte> bytes, std::uint64_t key, std::size_t from = 0) noexcept {
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(key, from + i);
}
[[nodiscard]] inline bool holds(std::span<const std::byte> bytes, std::uint64_t key, std::size_t from = 0) noexcept {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern(key, from + i)) return false;
  }
  return true;
}

/// A message on its way.
///   open   its operation has not ended
///   done   it has succeeded
///   maybe  it has failed, or was stopped, after it was posted
///   never  before
enum class fate : std::uint8_t { open, done, maybe, never };

struct sent_message {
  std::uint32_t bytes = 0;
  bool immediate = false;
  bool of_write = false;
  std::uint64_t invalidates = 0;  // a key of the receiver's
  sim::fate fate = fate::open;
  bool received = false;
  bool passed_over = false;  // a later one has been received
  bool lies_there = false;   // in memory that outlives its sender
  // Of a write: where it lies if the lane has not written anything since.
  std::size_t lane = 0;
  std::uint32_t offset = 0;
  std::uint64_t content = 0;
  std::uint32_t length = 0;
  std::uint64_t generation = 0;
};

/// The messages in one direction of a connection.
struct direction {
  std::vector<sent_message> messages;
  std::size_t next = 0;      // the first that has not been received or passed over
  std::size_t done = 0;      // how many have succeeded
  std::size_t received = 0;  // by the user at the other end
  bool ended = false;        // the other end has been told that no more will come
};

/// What a lane's part of the peer's memory may hold.
class shadow {
 public:
  explicit shadow(std::size_t bytes) : cells_(bytes) {}

  struct cell {
    std::byte value{};
    std::byte other{};
    enum : std::uint8_t { known, either, any } state = known;
  };

  /// A write begins: from here on both may be there. Returns what revert() needs.
  [[nodiscard]] std::vector<cell> begin(std::size_t offset, std::uint64_t key, std::size_t bytes) {
    const auto from = cells_.begin() + static_cast<std::ptrdiff_t>(offset);
    std::vector<cell> before(from, from + static_cast<std::ptrdiff_t>(bytes));
    for (std::size_t i = 0; i < bytes; ++i) {
      cell& one = cells_[offset + i];
      one.state = one.state == cell::known ? cell::either : cell::any;
      one.other = pattern(key, i);
    }
    ++generation_;
    return before;
  }
  /// It has never left.
  void revert(std::size_t offset, const std::vector<cell>& before) {
    std::copy(before.begin(), before.end(), cells_.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  /// It has succeeded; all that came before it is overwritten.
  void settle(std::size_t offset, std::uint64_t key, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) cells_[offset + i] = {.value = pattern(key, i)};
  }
  /// It has been read: false if it cannot be so. What was read is what is there from now on.
  [[nodiscard]] bool learn(std::size_t offset, std::span<const std::byte> bytes) {
    bool possible = true;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      cell& one = cells_[offset + i];
      possible = possible && (one.state == cell::any || one.value == bytes[i] ||
                              (one.state == cell::either && one.other == bytes[i]));
      one = {.value = bytes[i]};
    }
    return possible;
  }
  [[nodiscard]] bool is(std::span<const std::byte> bytes) const noexcept {
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (cells_[i].state == cell::known && cells_[i].value != bytes[i]) return false;
    }
    return true;
  }
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

 private:
  std::vector<cell> cells_;
  std::uint64_t generation_ = 0;  // counts writes
};

/// What a word that one lane alone changes may hold.
class word {
 public:
  [[nodiscard]] bool may_be(std::uint64_t value) const { return values_.contains(value); }
  [[nodiscard]] std::uint64_t some() const { return *values_.begin(); }
  void is(std::uint64_t value) { values_ = {value}; }
  template <class Change>
  void may_change(Change change) {
    std::set<std::uint64_t> more = values_;
    for (const std::uint64_t value : values_) more.insert(change(value));
    values_ = std::move(more);
  }
  [[nodiscard]] const std::set<std::uint64_t>& values() const noexcept { return values_; }
  void revert(std::set<std::uint64_t> values) { values_ = std::move(values); }

 private:
  std::set<std::uint64_t> values_{0};
};

}  // namespace weft::sim
