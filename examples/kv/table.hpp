// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <kv/record_ring.hpp>

// A hash table that peers read while it is written: its server and its clients share this layout.
//
// A bucket is 8 slots of 128 bytes, and one read of a client's. A key lives in one of two buckets and never moves, so a
// reader that finds it in neither has not missed it on its way. A slot, in the byte order of x86-64:
//   check (8 bytes)       CRC-64 of all that follows, up to the end of what is used, and of the bucket's number
//   version (8)           grows with each write to the table; the lowest 4 bits are the key's database
//   expires (4)           from this millisecond since 1970 on it is not there any more, by the server's clock; 0: never
//   flags (4)             the user's
//   expires (2)           the upper 16 bits
//   key size and 1 more (2), value size (4)
//   key and value, if they have 96 bytes together at most; else where their record lies: its offset in the table's
//   memory (8), its stamp (8), and a hash of the key (8); and zeroes up to the end, so that nobody reads what was there
//   before
// A slot without a key size is empty. Readers reckon with the server's clock (kv/clock.hpp), because nobody at the
// server sees them read.
//
// Records lie behind the buckets, in a ring (record_ring):
//   check (8)             CRC-64 of all that follows
//   stamp (8)             no two records ever have the same
//   key, value
// What is removed, or overwritten by a value that fits its slot, is filled with zeroes. A record that another one
// overwrites stays as it is until the ring has come round, so that who is reading it meanwhile gets a whole value. A
// reader that has been overtaken finds zeroes, another stamp, or a check that is wrong, and begins anew with the
// bucket. The oldest record makes room for the newest. If three quarters of the memory are enough for all that are
// named, it is moved, as a rule: not where there is no room of its size between the newest and the oldest, which values
// of nearly longest_value() may come to. Otherwise it is forgotten.
//
// A table that is cleared is emptied slot by slot, while peers read it: see table::clearing for what they find
// meanwhile. Neither devices nor processors read 128 bytes at once: a reader may get parts of two versions, which the
// check tells, and reads again.
namespace kv {

inline constexpr std::size_t longest_key = 512;
/// Of any table; one with little memory takes shorter ones: table::longest_value().
inline constexpr std::size_t longest_value = std::size_t{1} << 20;
inline constexpr std::size_t slots_in_bucket = 8;
inline constexpr std::size_t slot_bytes = 128;
inline constexpr std::size_t bucket_bytes = slots_in_bucket * slot_bytes;
/// Of a slot, for a key and its value.
inline constexpr std::size_t room_in_slot = 96;
/// Of a record, before its key.
inline constexpr std::size_t record_head_bytes = 16;
/// That a table has for records, at least.
inline constexpr std::size_t least_record_memory = std::size_t{16} << 10;

/// Milliseconds since 1970, by the server's clock.
using moment = std::uint64_t;
/// The last one that a slot can name, in the year 10889.
inline constexpr moment latest_moment = (moment{1} << 48) - 1;

/// What is kept beside a value.
struct attributes {
  std::uint32_t flags = 0;  ///< the user's
  moment expires = 0;       ///< from then on it is gone; 0: never
};

/// A copy of a value. One that fits a slot allocates nothing.
class value {
 public:
  value() = default;
  explicit value(std::string_view bytes, std::uint32_t flags = 0);
  [[nodiscard]] std::string_view view() const noexcept {
    return size_ <= small_.size() ? std::string_view(small_.data(), size_) : std::string_view(large_);
  }
  [[nodiscard]] std::uint32_t flags() const noexcept { return flags_; }

 private:
  std::array<char, room_in_slot> small_{};
  std::string large_;
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

/// Where a key and its value lie that do not fit a slot.
struct record_place {
  std::uint64_t offset = 0;  ///< in the table's memory
  std::uint64_t stamp = 0;
  std::uint64_t hash = 0;
  std::size_t key_size = 0;
  std::size_t value_size = 0;
  std::uint32_t flags = 0;
  /// Of the record.
  [[nodiscard]] std::size_t bytes() const noexcept { return record_head_bytes + key_size + value_size; }
};

enum class outcome : std::uint8_t {
  found,
  absent,
  torn,       ///< it may be in what was being written: read the bucket again
  in_record,  ///< of a bucket: its record is to be read
};

/// Looks for a key in the bytes of a bucket as they were read, of which it makes a copy. Trusts nothing in them. One
/// that has expired at `now` is absent, as are keys of other databases than the first.
class bucket_search {
 public:
  bucket_search(std::span<const std::byte, bucket_bytes> bucket, std::uint64_t number, std::string_view key,
                moment now) noexcept
      : number_(number), key_(key), now_(now) {
    std::copy(bucket.begin(), bucket.end(), bucket_.begin());
  }

  /// Fills `into` where it is found, and `record` where it is in one. If that turns out to be another key's, of the
  /// same hash, the search goes on: call again.
  [[nodiscard]] outcome next(value& into, record_place& record);

 private:
  std::array<std::byte, bucket_bytes> bucket_;
  std::uint64_t number_;
  std::string_view key_;
  moment now_;
  std::size_t slot_ = 0;
};

/// Looks at a record as it was read, which nobody writes any more, at the place that was said. Absent: it is another
/// key's.
[[nodiscard]] outcome read_record(std::span<const std::byte> bytes, const record_place& place, std::string_view key,
                                  value& into);

struct slot_head;
struct slot_image;

/// The table as its server has it: in memory that is somebody else's. For any thread.
class table {
 public:
  class entry;
  class clearing;
  class reading;

  /// `memory` is zeroed, aligned to 8 bytes, and begins with so many buckets, at least one. What is behind them is for
  /// records, least_record_memory at least.
  table(std::span<std::byte> memory, std::uint64_t buckets);

  [[nodiscard]] std::uint64_t buckets() const noexcept { return buckets_; }
  /// An eighth of the memory for records, at most.
  [[nodiscard]] std::size_t longest_value() const noexcept { return longest_value_; }
  /// How many keys it has, with those that have expired and were not overwritten, or are still to be cleared.
  [[nodiscard]] std::uint64_t size() const noexcept;
  [[nodiscard]] std::uint64_t size(std::size_t database) const noexcept {
    return counts_[database].size.load(std::memory_order_relaxed);
  }
  /// Bytes of records that slots name, and of the memory for them.
  [[nodiscard]] std::uint64_t record_bytes() const noexcept { return record_bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t record_memory() const noexcept { return ring_.capacity(); }
  /// How many keys have made room for others before they had expired.
  [[nodiscard]] std::uint64_t evicted() const noexcept { return evicted_.load(std::memory_order_relaxed); }

  /// Puts a value there in place of an older one: entry::store(). At most longest_value() bytes.
  void set(key_in key, std::string_view bytes, const attributes& beside, moment now);
  /// Empty as well for one that has expired at `now`.
  [[nodiscard]] std::optional<reading> find(key_in key, moment now) noexcept;
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

  /// Those of the two buckets of a key.
  class bucket_locks {
   public:
    bucket_locks(table& of, const places& where);

   private:
    std::unique_lock<std::mutex> first_;
    std::unique_lock<std::mutex> second_;
  };

  [[nodiscard]] std::span<slot, slots_in_bucket> slots_of(std::uint64_t bucket) const noexcept;
  [[nodiscard]] std::uint64_t bucket_of(const slot& place) const noexcept;
  [[nodiscard]] std::string_view key_of(const slot& where, const slot_head& of) const noexcept;
  [[nodiscard]] std::string_view value_of(const slot& where, const slot_head& of) const noexcept;
  [[nodiscard]] bool has(const slot& where, const slot_head& of, key_in key) const noexcept;
  void put(slot& where, slot_image& made, std::size_t database, const attributes& beside) noexcept;
  /// Yields how many bytes its record had.
  std::size_t make_empty(slot& where) noexcept;
  void forget_record(const record_place& gone) noexcept;
  void fill_with_zeroes(std::uint64_t offset, std::uint64_t bytes) noexcept;
  void count_expiry(std::size_t database, moment when, bool comes) noexcept;
  [[nodiscard]] bool is_cleared(std::uint64_t version) const noexcept {
    return version / databases <= counts_[version % databases].cleared.load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t next_version(std::size_t database) noexcept {
    return (version_.fetch_add(1, std::memory_order_relaxed) + 1) * databases + database;
  }

  void move_ahead(std::uint64_t bytes, moment now);
  [[nodiscard]] std::optional<record_ring::record> make_room(std::uint64_t bytes, key_in own, moment now);
  [[nodiscard]] bool move_oldest(moment now);
  [[nodiscard]] bool forget_oldest(key_in own, moment now);
  void drop_oldest(slot* named_by) noexcept;
  [[nodiscard]] bool is_wanted(const slot* named_by, moment now) const noexcept;
  [[nodiscard]] slot* slot_of(const record_ring::record& which) const noexcept;
  void move_record(slot& named_by, const record_ring::record& from);
  [[nodiscard]] record_place append_record(key_in key, std::uint64_t hash, std::string_view bytes);
  /// Where records begin.
  [[nodiscard]] std::uint64_t slots_bytes() const noexcept { return buckets_ * bucket_bytes; }

  std::byte* memory_;
  slot* slots_;
  std::uint64_t buckets_;
  std::size_t longest_value_;
  std::mutex records_;  // for the next two; taken before those of buckets
  record_ring ring_;
  std::uint64_t credit_ = 0;                       // bytes of old records that may be moved: what is set pays for it
  mutable std::array<std::mutex, locks> mutexes_;  // writers and local readers of a bucket; peers take none
  std::atomic<std::uint64_t> version_ = 0;
  std::atomic<std::uint64_t> record_bytes_ = 0;
  std::atomic<std::uint64_t> evicted_ = 0;
  std::array<counts, databases> counts_;  // of each
};

/// A value where it lies, which nobody else changes as long as this is there: one at a time in a thread, and without an
/// entry.
class table::reading {
 public:
  [[nodiscard]] std::string_view view() const noexcept { return bytes_; }
  [[nodiscard]] std::uint32_t flags() const noexcept { return flags_; }

 private:
  friend class table;
  reading(std::unique_lock<std::mutex> lock, std::string_view bytes, std::uint32_t flags) noexcept
      : lock_(std::move(lock)), bytes_(bytes), flags_(flags) {}

  std::unique_lock<std::mutex> lock_;
  std::string_view bytes_;
  std::uint32_t flags_;
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
  ~clearing() {
    while (go_on(of_.buckets_)) {
    }
  }

  /// Looks at so many buckets more, or at fewer if much is to be removed. False: there was nothing left.
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
  /// The key fits (fits_key()), and is needed for as long. What has expired at `now` is not there. One that is to store
  /// a value says how many bytes that has at most: what does not fit a slot makes older records of other keys go now.
  entry(table& of, key_in key, moment now, std::optional<std::size_t> will_store = std::nullopt);
  entry(const entry&) = delete;
  entry& operator=(const entry&) = delete;
  ~entry();

  [[nodiscard]] bool there() const noexcept { return there_; }
  /// Of one that is there, until it is changed.
  [[nodiscard]] std::string_view view() const noexcept;
  [[nodiscard]] attributes beside() const noexcept;
  /// Stores a value that lies elsewhere than in the table, of as many bytes as were announced at most. Once. If both
  /// buckets are full, what was written longest ago goes: it is a cache.
  void store(std::string_view bytes, const attributes& beside);
  /// Changes what is kept beside the value of one that is there.
  void change(const attributes& beside) noexcept;
  /// Removes what is there, or has expired. Once, and not after store().
  void erase() noexcept;

 private:
  [[nodiscard]] static std::unique_lock<std::mutex> lock_records(table& of, key_in key,
                                                                 std::optional<std::size_t> will_store);
  [[nodiscard]] std::optional<record_ring::record> make_room(std::optional<std::size_t> will_store, moment now);
  void find_place(moment now) noexcept;

  table& of_;
  key_in key_;
  std::uint64_t hash_;
  places where_;
  std::unique_lock<std::mutex> records_;  // of one that may store a record
  // The key's own record, if it has made room: its bytes are there until the next one is appended.
  std::optional<record_ring::record> passed_;
  bucket_locks locks_;
  slot* place_ = nullptr;  // of the key, or else for it
  bool mine_ = false;      // the key is in its place, be it expired
  bool there_ = false;
  bool evicts_ = false;  // what is in its place is another key, which has not expired
};

}  // namespace kv
