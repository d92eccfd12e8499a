// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>

#include <isa-l/crc64.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <chrono>
#include <cstring>
#include <optional>

#include <kv/table.hpp>

namespace kv {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t head_bytes = 28;
constexpr std::size_t room_bytes = slot_bytes - head_bytes;
static_assert(longest_key + longest_value == room_bytes);

// What lies in a slot, as a copy.
struct image {
  std::uint64_t check = 0;
  std::uint64_t version = 0;
  std::uint32_t expires = 0;
  std::uint32_t flags = 0;
  std::uint8_t key_size = 0;
  std::uint8_t value_size = 0;
  std::array<std::uint8_t, 2> zero{};
  std::array<char, room_bytes> room{};

  [[nodiscard]] bool empty() const noexcept { return key_size == 0; }
  [[nodiscard]] bool has_expired(std::uint32_t now) const noexcept { return expires != 0 && expires <= now; }
  [[nodiscard]] bool has_sizes() const noexcept { return key_size <= longest_key && value_size <= longest_value; }
  [[nodiscard]] std::string_view key() const noexcept { return {room.data(), key_size}; }
  [[nodiscard]] std::string_view bytes() const noexcept { return {room.data() + key_size, value_size}; }
  /// Of a slot with sizes that can be.
  [[nodiscard]] std::uint64_t check_in(std::uint64_t bucket) const noexcept;
  [[nodiscard]] bool is_whole(std::uint64_t bucket) const noexcept { return has_sizes() && check == check_in(bucket); }
};
static_assert(sizeof(image) == slot_bytes && std::is_trivially_copyable_v<image>);

std::uint64_t crc(std::uint64_t start, const void* bytes, std::size_t count) noexcept {
  return crc64_ecma_refl(start, static_cast<const unsigned char*>(bytes), count);
}

std::uint64_t image::check_in(std::uint64_t bucket) const noexcept {
  const std::size_t count = head_bytes - sizeof check + key_size + value_size;
  return crc(crc(0, &bucket, sizeof bucket), &version, count);
}

}  // namespace

// In memory that peers read while it is written.
struct table::slot {
  alignas(std::uint64_t) std::array<std::byte, slot_bytes> bytes;

  [[nodiscard]] image load() const noexcept {
    image copy;
    weft::mr::load_shared(bytes, std::as_writable_bytes(std::span(&copy, 1)));
    return copy;
  }
  void store(const image& what) noexcept { weft::mr::store_shared(bytes, std::as_bytes(std::span(&what, 1))); }
};

value::value(std::string_view bytes, std::uint32_t flags) noexcept
    : size_(std::min(bytes.size(), longest_value)), flags_(flags) {
  std::copy_n(bytes.begin(), size_, bytes_.begin());
}

std::uint32_t seconds_now() noexcept {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::seconds>(since_1970).count());
}

bool is_key(std::string_view text) noexcept {
  const auto printable = [](char c) { return c > ' ' && c < '\x7f'; };
  return !text.empty() && text.size() <= longest_key && std::all_of(text.begin(), text.end(), printable);
}

places places_of(std::string_view key, std::uint64_t buckets) noexcept {
  const std::uint64_t hash = crc(0, key.data(), key.size());
  const auto scale = [buckets](std::uint64_t half) { return static_cast<std::uint64_t>(half * buckets >> 32); };
  const std::uint64_t first = scale(hash & UINT32_MAX);
  const std::uint64_t second = scale(hash >> 32);
  return {.first = first, .second = second};
}

outcome find_in(std::span<const std::byte, bucket_bytes> bucket, std::uint64_t number, std::string_view key,
                value& into, std::uint32_t now) noexcept {
  bool torn = false;
  for (std::size_t i = 0; i < slots_in_bucket; ++i) {
    image each;
    std::memcpy(&each, bucket.subspan(i * slot_bytes, slot_bytes).data(), slot_bytes);
    if (each.empty()) continue;
    if (!each.is_whole(number)) {
      torn = true;
    } else if (each.key() == key) {
      if (each.has_expired(now)) return outcome::absent;
      into = value(each.bytes(), each.flags);
      return outcome::found;
    }
  }
  return torn ? outcome::torn : outcome::absent;
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

// Where it is; else, of what is empty, in the emptier bucket; else what is oldest.
table::slot& table::place_for(std::string_view key, const places& where) const noexcept {
  slot* empty = nullptr;
  std::size_t most_empty = 0;
  slot* oldest = nullptr;
  std::uint64_t oldest_version = UINT64_MAX;
  for (const std::uint64_t bucket : {where.first, where.second}) {
    slot* first_empty = nullptr;
    std::size_t empty_here = 0;
    for (slot& each : slots_of(bucket)) {
      const image what = each.load();
      if (what.empty()) {
        if (++empty_here == 1) first_empty = &each;
      } else if (what.key() == key) {
        return each;
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
  return empty != nullptr ? *empty : *oldest;
}

void table::write(slot& where, std::string_view key, std::string_view bytes, const attributes& beside) noexcept {
  image made;
  made.expires = beside.expires;
  made.flags = beside.flags;
  {
    const std::lock_guard lock(counting_);
    made.version = ++version_;
  }
  made.key_size = static_cast<std::uint8_t>(key.size());
  made.value_size = static_cast<std::uint8_t>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), std::copy(key.begin(), key.end(), made.room.begin()));
  made.check = made.check_in(bucket_of(where));
  where.store(made);
}

void table::set(std::string_view key, std::string_view bytes, const attributes& beside) noexcept {
  assert(is_key(key) && bytes.size() <= longest_value);
  const places where = places_of(key, buckets_);
  std::mutex& first = mutexes_[where.first % locks];
  std::mutex& second = mutexes_[where.second % locks];
  std::unique_lock lock(first, std::defer_lock);
  std::unique_lock other(second, std::defer_lock);
  if (&first == &second) {
    lock.lock();
  } else {
    std::lock(lock, other);
  }
  write(place_for(key, where), key, bytes, beside);
}

bool table::get(std::string_view key, value& into, std::uint32_t now) noexcept {
  const places where = places_of(key, buckets_);
  for (const std::uint64_t bucket : {where.first, where.second}) {
    const std::lock_guard lock(mutexes_[bucket % locks]);
    for (slot& each : slots_of(bucket)) {
      const image what = each.load();
      if (what.key() != key) continue;
      if (what.has_expired(now)) return false;
      into = value(what.bytes(), what.flags);
      return true;
    }
  }
  return false;
}

}  // namespace kv
