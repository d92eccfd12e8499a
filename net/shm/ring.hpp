// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

// A stream of bytes through memory that two processes share: one writes, the other reads. Each relies on private copies
// of its own positions, and checks everything that it reads from the shared memory.
namespace weft::net::shm {

inline constexpr std::size_t cache_line = 64;
/// The most ranges of its memory that one end can lend to the other at a time, for direct access.
inline constexpr std::size_t max_loans = 64;

/// The state of one end, in the shared memory: written by that end, read by the other.
///
/// `attention` says whether the end sleeps; this word alone is also written by the other end:
///   awake     the end polls by itself
///   asleep    the end sleeps: when the other end has published a record, or released room for which the end may wait,
///             it changes the word to awake and wakes the end once
/// `lent` says of each loan of this end's memory whether the other end may use it:
///   shut      it may not, or there is no such loan
///   open      it may, if it reads this value after it has made its `turn` odd for the access
/// `payloads` says whether payloads that the other end copies out of this end's memory are still there:
///   kept      each is, until the other end has answered that it has copied it
///   let_go    this end has broken the connection: a copy that is not complete by now must be discarded
struct end_words {
  static constexpr std::uint32_t awake = 0;
  static constexpr std::uint32_t asleep = 1;
  static constexpr std::uint32_t shut = 0;
  static constexpr std::uint32_t open = 1;
  static constexpr std::uint32_t kept = 0;
  static constexpr std::uint32_t let_go = 1;

  alignas(cache_line) std::atomic<std::uint64_t> written{0};  ///< bytes written to its ring in all
  alignas(cache_line) std::atomic<std::uint64_t> taken{0};    ///< bytes taken from the other end's ring in all
  alignas(cache_line) std::atomic<std::uint32_t> attention{awake};
  std::atomic<std::uint32_t> payloads{kept};
  alignas(cache_line) std::atomic<std::uint64_t> turn{0};  ///< odd while this end accesses memory that it was lent
  alignas(cache_line) std::array<std::atomic<std::uint32_t>, max_loans> lent{};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(end_words) == 8 * cache_line);

/// The writing side of a ring. The other end sees what is written once it is published.
class ring_writer {
 public:
  ring_writer() = default;
  /// The length of `memory` must be a power of two, and its alignment that of a cache line.
  ring_writer(std::span<std::byte> memory, end_words& own, const end_words& other) noexcept
      : memory_(memory), own_(&own), other_(&other) {}

  [[nodiscard]] std::size_t capacity() const noexcept { return memory_.size(); }
  /// How many bytes can be written. `*sane` is false if the other end claims to have taken more than there was, less
  /// than before, or a part of a cache line.
  [[nodiscard]] std::size_t room(bool* sane) noexcept;
  /// How many bytes are left until the ring wraps to its beginning.
  [[nodiscard]] std::size_t until_wrap() const noexcept { return capacity() - position(); }
  /// How many bytes can be written at place(), as room() last found; the other end may have made more room since.
  [[nodiscard]] std::size_t contiguous_known_room() const noexcept {
    return std::min(capacity() - static_cast<std::size_t>(written_ - taken_), until_wrap());
  }
  /// Where the next bytes go: until_wrap() of them are contiguous, as far as there is room.
  [[nodiscard]] std::byte* place() const noexcept { return memory_.data() + position(); }
  void advance(std::size_t bytes) noexcept { written_ += bytes; }
  /// Publishes all that was written so far. To be followed by a look at the other end's `attention`;
  /// output_ring::wake_other() says how the two are ordered.
  void publish() noexcept {
    published_ = written_;
    own_->written.store(written_, std::memory_order_seq_cst);
  }
  [[nodiscard]] bool has_unpublished() const noexcept { return published_ != written_; }
  [[nodiscard]] bool other_is_awake() const noexcept {
    return other_->attention.load(std::memory_order_seq_cst) == end_words::awake;
  }

 private:
  [[nodiscard]] std::size_t position() const noexcept { return written_ & (capacity() - 1); }

  std::span<std::byte> memory_;
  end_words* own_ = nullptr;
  const end_words* other_ = nullptr;
  std::uint64_t written_ = 0;
  std::uint64_t published_ = 0;
  std::uint64_t taken_ = 0;  // the other end's `taken`, as last read
};

/// The reading side of a ring.
class ring_reader {
 public:
  ring_reader() = default;
  ring_reader(std::span<const std::byte> memory, end_words& own, const end_words& other) noexcept
      : memory_(memory), own_(&own), other_(&other) {}

  [[nodiscard]] std::size_t capacity() const noexcept { return memory_.size(); }
  /// How many bytes are known to be there to take; looks for new ones only if none are known. `*sane` is false if the
  /// other end claims to have published more than fits.
  [[nodiscard]] std::size_t available(bool* sane) noexcept;
  /// Whether there is nothing to take; false also if the other end's position is impossible.
  [[nodiscard]] bool is_empty() const noexcept {
    return written_ == taken_ && other_->written.load(std::memory_order_acquire) == taken_;
  }
  [[nodiscard]] std::size_t until_wrap() const noexcept { return capacity() - position(); }
  /// The oldest byte to take. The other end may change the memory at any time, so copy before you check.
  [[nodiscard]] const std::byte* place() const noexcept { return memory_.data() + position(); }
  void advance(std::size_t bytes) noexcept { taken_ += bytes; }
  /// Lets the other end reuse the room of all bytes taken.
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
  std::uint64_t written_ = 0;  // the other end's `written`, as last read
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
