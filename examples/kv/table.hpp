// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

// A hash table that peers read while it is written: its server and its clients share this layout.
//
// A bucket is 8 slots of 128 bytes, and one read of a client's. A key lives in one of two buckets and never moves, so a
// reader that finds it in neither has not missed it on its way. A slot, in the byte order of x86-64:
//   check (8 bytes)    CRC-64 of all that follows, up to the end of the value, and of the bucket's number
//   version (8)        grows with each write to the table; the lowest 4 bits are the key's database
//   expires (4)        from this millisecond since 1970 on it is not there any more, by the server's clock; 0: never
//   flags (4)          the user's
//   key size and 1 more (1), value size (1)
//   expires (2)        the upper 16 bits
//   key, value; and zeroes up to the end, so that nobody reads what was there before
// A slot without a key size is empty. Readers reckon with the server's clock (kv/clock.hpp), because nobody at the
// server sees them read.
// A table that is cleared is emptied slot by slot, while peers read it: see table::clearing for what they find
// meanwhile. Neither devices nor processors read 128 bytes at once: a reader may get parts of two versions, which the
// check tells, and reads again.
namespace kv {

inline constexpr std::size_t longest_key = 36;
inline constexpr std::size_t longest_value = 64;
inline constexpr std::size_t slots_in_bucket = 8;
inline constexpr std::size_t slot_bytes = 128;
inline constexpr std::size_t bucket_bytes = slots_in_bucket * slot_bytes;

/// Milliseconds since 1970, by the server's clock.
using moment = std::uint64_t;
/// The last one that a slot can name, in the year 10889.
inline constexpr moment latest_moment = (moment{1} << 48) - 1;

/// What is kept beside a value.
struct attributes {
  std::uint32_t flags = 0;  ///< the user's
  moment expires = 0;       ///< from then on it is gone; 0: never
};

/// A copy of a value.
class value {
 public:
  value() = default;
  /// At most longest_value bytes.
  explicit value(std::string_view bytes, std::uint32_t flags = 0) noexcept;
  [[nodiscard]] std::string_view view() const noexcept { return {bytes_.data(), size_}; }
  [[nodiscard]] std::uint32_t flags() const noexcept { return flags_; }

 private:
  std::array<char, longest_value> bytes_{};
  std::size_t size_ = 0;
  std::uint32_t flags_ = 0;
};

/// As Redis has them. Clients over weft and of the text protocol see the first one.
inline constexpr std::size_t databases = 16;

/// A key, in a database. It refers to its text.
struct key_in {
  template <std::convertible_to<std::string_view> Text>
  key_in(const Text& said, std::size_t of = 0) noexcept : text(said), database(of) {}  // NOLINT(*-explicit-*)
  std::string_view text;
  std::size_t database;
};

/// Whether a table takes such a key: it may have no bytes.
[[nodiscard]] constexpr bool fits_key(std::string_view text) noexcept { return text.size() <= longest_key; }
/// Whether it can be said in a line of text as well: it is of printable characters without spaces, at least one.
[[nodiscard]] bool is_key(std::string_view text) noexcept;

/// The buckets in which a key may be.
struct places {
  std::uint64_t first;
  std::uint64_t second;
};
[[nodiscard]] places places_of(key_in key, std::uint64_t buckets) noexcept;

enum class outcome : std::uint8_t {
  found,
  absent,
  torn,  ///< it may be in a slot that was being written: read the bucket again
};

/// Looks for a key in the bytes of a bucket as they were read, which nobody writes any more. Trusts nothing in them.
/// One that has expired at `now` is absent, as are keys of other databases than the first.
[[nodiscard]] outcome find_in(std::span<const std::byte, bucket_bytes> bucket, std::uint64_t number,
                              std::string_view key, value& into, moment now) noexcept;

/// The table as its server has it: in memory that is somebody else's. For any thread.
class table {
 public:
  class entry;
  class clearing;

  /// `memory` is zeroed, aligned to 8 bytes and a whole number of buckets, at least one.
  explicit table(std::span<std::byte> memory) noexcept;

  [[nodiscard]] std::uint64_t buckets() const noexcept { return buckets_; }
  /// How many keys it has, with those that have expired and were not overwritten, or are still to be cleared.
  [[nodiscard]] std::uint64_t size() const noexcept;
  [[nodiscard]] std::uint64_t size(std::size_t database) const noexcept {
    return counts_[database].size.load(std::memory_order_relaxed);
  }
  /// Puts a value there in place of an older one: entry::store().
  void set(key_in key, std::string_view bytes, const attributes& beside, moment now) noexcept;
  /// False as well for one that has expired at `now`.
  [[nodiscard]] bool get(key_in key, value& into, moment now) noexcept;
  /// Of the keys of a database, how many expire.
  [[nodiscard]] std::uint64_t expiring(std::size_t database = 0) const noexcept {
    return counts_[database].expiring.load(std::memory_order_relaxed);
  }
  /// How many milliseconds these have left at `now`, on average: 0 if none expires.
  [[nodiscard]] moment mean_time_left(moment now, std::size_t database = 0) const noexcept;

 private:
  struct slot;
  struct counts {
    std::atomic<std::uint64_t> size = 0;
    std::atomic<std::uint64_t> expiring = 0;
    std::atomic<std::uint64_t> seconds = 0;  // the sum of their expiries, and
    std::atomic<std::uint64_t> milliseconds = 0;
    std::atomic<std::uint64_t> cleared = 0;  // what is not younger is on its way out: nobody here finds it
  };
  static constexpr std::size_t locks = 64;

  [[nodiscard]] std::span<slot, slots_in_bucket> slots_of(std::uint64_t bucket) const noexcept;
  [[nodiscard]] std::uint64_t bucket_of(const slot& place) const noexcept;
  void write(slot& where, key_in key, std::string_view bytes, const attributes& beside) noexcept;
  void empty(slot& where) noexcept;
  void count_expiry(std::size_t database, moment when, bool comes) noexcept;
  [[nodiscard]] bool is_cleared(std::uint64_t version) const noexcept {
    return version / databases <= counts_[version % databases].cleared.load(std::memory_order_relaxed);
  }

  slot* slots_;
  std::uint64_t buckets_;
  mutable std::array<std::mutex, locks> mutexes_;  // writers and local readers of a bucket; peers take none
  std::atomic<std::uint64_t> version_ = 0;
  std::array<counts, databases> counts_;  // of each
};

/// Removes what is in a table, or in one of its databases, when this is made. What is set meanwhile stays. Its end does
/// what is left.
///
/// From its beginning on nobody here finds what it removes. Those who read the table by themselves find a key until it
/// is emptied: when its bucket is reached, at the latest by the end, and before that once somebody here has looked for
/// it. So all agree on when a key went, but not on one moment for all keys. That cannot be had with the one read of a
/// GET, which sees a bucket and nothing else: an epoch for all would have to be read as well, behind each bucket, for
/// the price of another read.
class table::clearing {
 public:
  explicit clearing(table& of, std::optional<std::size_t> database = {}) noexcept;
  clearing(const clearing&) = delete;
  clearing& operator=(const clearing&) = delete;
  ~clearing() { go_on(of_.buckets_); }

  /// Looks at so many buckets more. False: there was nothing left.
  bool go_on(std::uint64_t buckets) noexcept;

 private:
  [[nodiscard]] bool removes(std::uint64_t version) const noexcept {
    return version / databases <= last_version_ && (!database_ || version % databases == *database_);
  }

  table& of_;
  std::optional<std::size_t> database_;
  std::uint64_t last_version_;
  std::uint64_t next_;
};

/// What a table has under one key, which nobody else changes as long as this is there: one at a time in a thread.
class table::entry {
 public:
  /// The key fits (fits_key()), and is needed for as long. What has expired at `now` is not there.
  entry(table& of, key_in key, moment now) noexcept;
  entry(const entry&) = delete;
  entry& operator=(const entry&) = delete;

  [[nodiscard]] bool there() const noexcept { return there_; }
  /// Of one that is there.
  [[nodiscard]] value current() const noexcept;
  [[nodiscard]] attributes beside() const noexcept;
  /// Stores at most longest_value bytes, once. If both buckets are full, what was written longest ago goes: it is a
  /// cache.
  void store(std::string_view bytes, const attributes& beside) noexcept;
  /// Removes what is there, or has expired. Once, and not after store().
  void erase() noexcept;

 private:
  void find_place(const places& where, moment now) noexcept;

  table& of_;
  key_in key_;
  std::unique_lock<std::mutex> first_;
  std::unique_lock<std::mutex> second_;
  slot* place_ = nullptr;  // of the key, or else for it
  bool mine_ = false;      // the key is in its place, be it expired
  bool there_ = false;
};

}  // namespace kv
