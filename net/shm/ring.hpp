// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

// A stream of bytes through memory that two processes share: one writes, one reads. Each trusts its own copies of where
// it is, and believes nothing of what lies in the shared memory but what it has checked.
namespace weft::net::shm {

inline constexpr std::size_t cache_line = 64;
/// How much of its memory one end can lend to the other at a time, for direct access: so many ranges.
inline constexpr std::size_t max_loans = 64;

/// What one end tells the other, in the shared memory: written by that end alone, read by the other.
///
/// `attention` is how it sleeps, and the other end changes it too:
///   awake     the end looks by itself
///   asleep    whoever publishes anything for it moves it to awake, and then, once, wakes it
/// `lent` says of each loan of this end's memory whether the other end may use it:
///   shut      it may not, or there is none
///   open      it may, each time that it finds it so after it has made its `turn` odd
/// `payloads` says whether what this end has asked the other to copy out of its memory is still there:
///   kept      it is, until the other end has said that it has it
///   let_go    the connection has ended before: what was copied means nothing
struct end_words {
  static constexpr std::uint32_t awake = 0;
  static constexpr std::uint32_t asleep = 1;
  static constexpr std::uint32_t shut = 0;
  static constexpr std::uint32_t open = 1;
  static constexpr std::uint32_t kept = 0;
  static constexpr std::uint32_t let_go = 1;

  alignas(cache_line) std::atomic<std::uint64_t> written{0};  ///< bytes that it has written to its ring, ever
  alignas(cache_line) std::atomic<std::uint64_t> taken{0};    ///< bytes that it has taken from the other's ring, ever
  alignas(cache_line) std::atomic<std::uint32_t> attention{awake};
  std::atomic<std::uint32_t> payloads{kept};
  alignas(cache_line) std::atomic<std::uint64_t> turn{0};  ///< odd: it is inside of memory that the other end has lent
  alignas(cache_line) std::array<std::atomic<std::uint32_t>, max_loans> lent{};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(end_words) == 8 * cache_line);

/// The end of a ring that writes. What is written is seen by the other end once it is published.
class ring_writer {
 public:
  ring_writer() = default;
  /// `memory` is a power of two long and aligned as a cache line.
  ring_writer(std::span<std::byte> memory, end_words& own, const end_words& other) noexcept
      : memory_(memory), own_(&own), other_(&other) {}

  [[nodiscard]] std::size_t capacity() const noexcept { return memory_.size(); }
  /// How much can be written. False in `*sane` once the other end has said that it took more than there was, less than
  /// before, or a part of a cache line.
  [[nodiscard]] std::size_t room(bool* sane) noexcept;
  /// How much is left until the ring goes on at its beginning.
  [[nodiscard]] std::size_t until_wrap() const noexcept { return capacity() - position(); }
  /// Where the next bytes go: `until_wrap()` of them in one piece, as far as there is room.
  [[nodiscard]] std::byte* place() const noexcept { return memory_.data() + position(); }
  void advance(std::size_t bytes) noexcept { written_ += bytes; }
  /// All that was written so far. Before a look at the other end's attention, of which it is one half: see
  /// shm_link::wake_other().
  void publish() noexcept {
    published_ = written_;
    own_->written.store(written_, std::memory_order_seq_cst);
  }
  [[nodiscard]] bool has_unpublished() const noexcept { return published_ != written_; }

 private:
  [[nodiscard]] std::size_t position() const noexcept { return written_ & (capacity() - 1); }

  std::span<std::byte> memory_;
  end_words* own_ = nullptr;
  const end_words* other_ = nullptr;
  std::uint64_t written_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t taken_ = 0;  // what the other end said last
};

/// The end of a ring that reads.
class ring_reader {
 public:
  ring_reader() = default;
  ring_reader(std::span<const std::byte> memory, end_words& own, const end_words& other) noexcept
      : memory_(memory), own_(&own), other_(&other) {}

  [[nodiscard]] std::size_t capacity() const noexcept { return memory_.size(); }
  /// How many bytes there are to take. False in `*sane` once the other end has said what cannot be.
  [[nodiscard]] std::size_t available(bool* sane) noexcept;
  /// Whether there is anything, or nonsense.
  [[nodiscard]] bool is_empty() const noexcept {
    return written_ == taken_ && other_->written.load(std::memory_order_acquire) == taken_;
  }
  [[nodiscard]] std::size_t until_wrap() const noexcept { return capacity() - position(); }
  /// The oldest of them. The other end may change them at any time: copy what is to be checked.
  [[nodiscard]] const std::byte* place() const noexcept { return memory_.data() + position(); }
  void advance(std::size_t bytes) noexcept { taken_ += bytes; }
  /// Lets the other end write again where the taken ones were.
  void release() noexcept {
    released_ = taken_;
    own_->taken.store(taken_, std::memory_order_seq_cst);
  }
  [[nodiscard]] std::size_t unreleased() const noexcept { return static_cast<std::size_t>(taken_ - released_); }

 private:
  [[nodiscard]] std::size_t position() const noexcept { return taken_ & (capacity() - 1); }

  std::span<const std::byte> memory_;
  end_words* own_ = nullptr;
  const end_words* other_ = nullptr;
  std::uint64_t taken_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t written_ = 0;  // what the other end said last
};

inline std::size_t ring_writer::room(bool* sane) noexcept {
  const std::uint64_t taken = other_->taken.load(std::memory_order_acquire);
  *sane = taken - taken_ <= published_ - taken_ && taken % cache_line == 0;
  if (!*sane) return 0;
  taken_ = taken;
  return capacity() - static_cast<std::size_t>(written_ - taken_);
}

inline std::size_t ring_reader::available(bool* sane) noexcept {
  if (written_ == taken_) {
    const std::uint64_t written = other_->written.load(std::memory_order_acquire);
    *sane = written - taken_ <= capacity();
    if (!*sane) return 0;
    written_ = written;
  } else {
    *sane = true;
  }
  return static_cast<std::size_t>(written_ - taken_);
}

}  // namespace weft::net::shm
