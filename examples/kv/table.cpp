// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>

#include <isa-l/crc64.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>

#include <kv/table.hpp>

namespace kv {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t head_bytes = 28;
constexpr std::size_t room_bytes = slot_bytes - head_bytes;
static_assert(longest_key + longest_value == room_bytes);

// What a slot begins with, as a copy.
struct head {
  std::uint64_t check = 0;
  std::uint64_t version = 0;
  std::uint32_t expires_low = 0;
  std::uint32_t flags = 0;
  std::uint8_t key_size_and_1 = 0;
  std::uint8_t value_size = 0;
  std::uint16_t expires_high = 0;

  [[nodiscard]] bool empty() const noexcept { return key_size_and_1 == 0; }
  [[nodiscard]] std::size_t database() const noexcept { return version % databases; }
  /// Of one that is not empty.
  [[nodiscard]] std::size_t key_size() const noexcept { return key_size_and_1 - std::size_t{1}; }
  [[nodiscard]] moment expires() const noexcept { return moment{expires_high} << 32 | expires_low; }
  void set_expires(moment when) noexcept {
    expires_low = static_cast<std::uint32_t>(when);
    expires_high = static_cast<std::uint16_t>(when >> 32);
  }
  [[nodiscard]] bool has_expired(moment now) const noexcept { return expires() != 0 && expires() <= now; }
  [[nodiscard]] bool has_sizes() const noexcept { return key_size() <= longest_key && value_size <= longest_value; }
};

std::uint64_t crc(std::uint64_t start, const void* bytes, std::size_t count) noexcept {
  return crc64_ecma_refl(start, static_cast<const unsigned char*>(bytes), count);
}

// All of it.
struct image : head {
  std::array<char, room_bytes> room;

  [[nodiscard]] std::string_view key() const noexcept { return {room.data(), key_size()}; }
  [[nodiscard]] std::string_view bytes() const noexcept { return {room.data() + key_size(), value_size}; }
  [[nodiscard]] std::size_t used_bytes() const noexcept { return head_bytes + key_size() + value_size; }
  /// Of a slot with sizes that can be.
  [[nodiscard]] std::uint64_t check_in(std::uint64_t bucket) const noexcept {
    return crc(crc(0, &bucket, sizeof bucket), &version, used_bytes() - sizeof check);
  }
  [[nodiscard]] bool is_whole(std::uint64_t bucket) const noexcept { return has_sizes() && check == check_in(bucket); }
};
static_assert(sizeof(image) == slot_bytes && std::is_trivially_copyable_v<image>);

}  // namespace

// In memory that peers read while it is written. Its own threads write it through store_shared only, because of peers,
// and under the mutexes of its bucket, so that one that has these reads it as it is.
struct table::slot {
  alignas(std::uint64_t) std::array<std::byte, slot_bytes> bytes;

  [[nodiscard]] kv::head head() const noexcept {
    kv::head copy;
    std::memcpy(&copy, bytes.data(), sizeof copy);
    return copy;
  }
  [[nodiscard]] std::string_view text(std::size_t offset, std::size_t size) const noexcept {
    return {reinterpret_cast<const char*>(bytes.data()) + head_bytes + offset, size};
  }
  [[nodiscard]] bool has(const kv::head& of, key_in key) const noexcept {
    return !of.empty() && of.database() == key.database && of.key_size() == key.text.size() &&
           text(0, key.text.size()) == key.text;
  }
  [[nodiscard]] value content(const kv::head& of) const noexcept {
    return value(text(of.key_size(), of.value_size), of.flags);
  }
  // All of it: peers read what is there, and not only what the sizes cover.
  void store(const image& what) noexcept { weft::mr::store_shared(bytes, std::as_bytes(std::span(&what, 1))); }
};

value::value(std::string_view bytes, std::uint32_t flags) noexcept
    : size_(std::min(bytes.size(), longest_value)), flags_(flags) {
  std::copy_n(bytes.begin(), size_, bytes_.begin());
}

bool is_key(std::string_view text) noexcept {
  const auto printable = [](char c) { return c > ' ' && c < '\x7f'; };
  return !text.empty() && fits_key(text) && std::all_of(text.begin(), text.end(), printable);
}

places places_of(key_in key, std::uint64_t buckets) noexcept {
  const std::uint64_t hash = crc(key.database, key.text.data(), key.text.size());
  const auto scale = [buckets](std::uint64_t half) { return static_cast<std::uint64_t>(half * buckets >> 32); };
  const std::uint64_t first = scale(hash & UINT32_MAX);
  const std::uint64_t second = scale(hash >> 32);
  return {.first = first, .second = second};
}

outcome find_in(std::span<const std::byte, bucket_bytes> bucket, std::uint64_t number, std::string_view key,
                value& into, moment now) noexcept {
  std::array<image, slots_in_bucket> slots;
  std::memcpy(slots.data(), bucket.data(), bucket_bytes);
  for (const image& each : slots) {
    if (each.empty() || !each.has_sizes() || each.database() != 0 || each.key() != key) continue;
    if (!each.is_whole(number)) return outcome::torn;
    if (each.has_expired(now)) return outcome::absent;
    into = value(each.bytes(), each.flags);
    return outcome::found;
  }
  // A slot that is being written may be the key's.
  const auto is_torn = [&](const image& each) { return !each.empty() && !each.is_whole(number); };
  return std::ranges::any_of(slots, is_torn) ? outcome::torn : outcome::absent;
}

table::table(std::span<std::byte> memory) noexcept
    : slots_(reinterpret_cast<slot*>(memory.data())), buckets_(memory.size() / bucket_bytes) {
  assert(buckets_ != 0 && reinterpret_cast<std::uintptr_t>(slots_) % alignof(slot) == 0);
}

std::span<table::slot, slots_in_bucket> table::slots_of(std::uint64_t bucket) const noexcept {
  return std::span<slot, slots_in_bucket>(slots_ + bucket * slots_in_bucket, slots_in_bucket);
}

std::uint64_t table::bucket_of(const slot& place) const noexcept {
  return static_cast<std::uint64_t>(&place - slots_) / slots_in_bucket;
}

void table::write(slot& where, key_in key, std::string_view bytes, const attributes& beside) noexcept {
  image made;
  made.set_expires(beside.expires);
  made.flags = beside.flags;
  made.version = (version_.fetch_add(1, std::memory_order_relaxed) + 1) * databases + key.database;
  made.key_size_and_1 = static_cast<std::uint8_t>(key.text.size() + 1);
  made.value_size = static_cast<std::uint8_t>(bytes.size());
  char* const end =
      std::copy(bytes.begin(), bytes.end(), std::copy(key.text.begin(), key.text.end(), made.room.begin()));
  std::fill(end, std::to_address(made.room.end()), '\0');
  made.check = made.check_in(bucket_of(where));
  count_expiry(where.head().database(), where.head().expires(), false);
  count_expiry(key.database, beside.expires, true);
  where.store(made);
}

void table::empty(slot& where) noexcept {
  image nothing;
  nothing.room = {};
  const head gone = where.head();
  count_expiry(gone.database(), gone.expires(), false);
  where.store(nothing);
  counts_[gone.database()].size.fetch_sub(1, std::memory_order_relaxed);
}

// One key's, of a slot that is written; 0 if it does not expire.
void table::count_expiry(std::size_t database, moment when, bool comes) noexcept {
  if (when == 0) return;
  counts& of = counts_[database];
  const auto add = [comes](std::atomic<std::uint64_t>& to, std::uint64_t what) {
    to.fetch_add(comes ? what : std::uint64_t{0} - what, std::memory_order_relaxed);
  };
  add(of.expiring, 1);
  add(of.seconds, when / 1000);
  add(of.milliseconds, when % 1000);
}

std::uint64_t table::size() const noexcept {
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < databases; ++i) all += size(i);
  return all;
}

moment table::mean_time_left(moment now, std::size_t database) const noexcept {
  const std::uint64_t count = expiring(database);
  if (count == 0) return 0;
  const std::uint64_t seconds = counts_[database].seconds.load(std::memory_order_relaxed);
  const std::uint64_t milliseconds = counts_[database].milliseconds.load(std::memory_order_relaxed);
  const moment mean = seconds / count * 1000 + (seconds % count * 1000 + milliseconds) / count;
  return mean > now ? mean - now : 0;
}

void table::set(key_in key, std::string_view bytes, const attributes& beside, moment now) noexcept {
  entry(*this, key, now).store(bytes, beside);
}

bool table::get(key_in key, value& into, moment now) noexcept {
  if (!fits_key(key.text)) return false;
  const places where = places_of(key, buckets_);
  for (const std::uint64_t bucket : {where.first, where.second}) {
    const std::lock_guard lock(mutexes_[bucket % locks]);
    for (slot& each : slots_of(bucket)) {
      const head what = each.head();
      if (!each.has(what, key)) continue;
      if (is_cleared(what.version)) {
        empty(each);
        return false;
      }
      if (what.has_expired(now)) return false;
      into = each.content(what);
      return true;
    }
  }
  return false;
}

table::clearing::clearing(table& of, std::optional<std::size_t> database) noexcept
    : of_(of),
      database_(database),
      last_version_(of.version_.load(std::memory_order_relaxed)),
      next_((database ? of.size(*database) : of.size()) == 0 ? of.buckets_ : 0) {
  for (std::size_t i = database.value_or(0); i <= database.value_or(databases - 1); ++i) {
    std::atomic<std::uint64_t>& cleared = of.counts_[i].cleared;
    std::uint64_t before = cleared.load(std::memory_order_relaxed);
    while (before < last_version_ && !cleared.compare_exchange_weak(before, last_version_, std::memory_order_relaxed)) {
    }
  }
}

bool table::clearing::go_on(std::uint64_t buckets) noexcept {
  const std::uint64_t end = next_ + std::min(buckets, of_.buckets_ - next_);
  for (; next_ != end; ++next_) {
    const std::lock_guard lock(of_.mutexes_[next_ % locks]);
    for (slot& each : of_.slots_of(next_)) {
      const head what = each.head();
      if (!what.empty() && removes(what.version)) of_.empty(each);
    }
  }
  return next_ != of_.buckets_;
}

table::entry::entry(table& of, key_in key, moment now) noexcept : of_(of), key_(key) {
  assert(fits_key(key.text));
  const places where = places_of(key, of.buckets_);
  std::mutex& first = of.mutexes_[where.first % locks];
  std::mutex& second = of.mutexes_[where.second % locks];
  // Everybody takes the two in one order.
  first_ = std::unique_lock(std::less<>()(&first, &second) ? first : second);
  if (&first != &second) second_ = std::unique_lock(std::less<>()(&first, &second) ? second : first);
  find_place(where, now);
}

// Where it is; else, of what is empty or has expired, in the emptier bucket; else what is oldest.
void table::entry::find_place(const places& where, moment now) noexcept {
  slot* empty = nullptr;
  std::size_t most_empty = 0;
  slot* oldest = nullptr;
  std::uint64_t oldest_version = UINT64_MAX;
  for (const std::uint64_t bucket : {where.first, where.second}) {
    slot* first_empty = nullptr;
    std::size_t empty_here = 0;
    for (slot& each : of_.slots_of(bucket)) {
      const head what = each.head();
      const bool cleared = of_.is_cleared(what.version);
      if (each.has(what, key_)) {
        if (!cleared) {
          place_ = &each;
          mine_ = true;
          there_ = !what.has_expired(now);
          return;
        }
        of_.empty(each);
      }
      if (what.empty() || cleared || what.has_expired(now)) {
        if (++empty_here == 1) first_empty = &each;
      } else if (what.version < oldest_version) {
        oldest_version = what.version;
        oldest = &each;
      }
    }
    // Most are found by the first read, as long as there is room to choose.
    const bool roomy = bucket == where.first && empty_here > slots_in_bucket / 4;
    if (empty_here > most_empty) {
      empty = first_empty;
      most_empty = roomy ? slots_in_bucket : empty_here;
    }
  }
  place_ = empty != nullptr ? empty : oldest;
}

value table::entry::current() const noexcept { return place_->content(place_->head()); }

attributes table::entry::beside() const noexcept {
  const head what = place_->head();
  return {.flags = what.flags, .expires = what.expires()};
}

void table::entry::store(std::string_view bytes, const attributes& beside) noexcept {
  assert(bytes.size() <= longest_value && beside.expires <= latest_moment);
  if (!mine_) {
    const head gone = place_->head();
    if (!gone.empty()) of_.counts_[gone.database()].size.fetch_sub(1, std::memory_order_relaxed);
    of_.counts_[key_.database].size.fetch_add(1, std::memory_order_relaxed);
  }
  of_.write(*place_, key_, bytes, beside);
}

void table::entry::erase() noexcept {
  if (mine_) of_.empty(*place_);
}

}  // namespace kv
