// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>

#include <isa-l/crc64.h>

#include <bit>
#include <cassert>
#include <cstring>
#include <functional>

#include <kv/table.hpp>

namespace kv {

// What a slot begins with, as a copy.
struct slot_head {
  std::uint64_t check = 0;
  std::uint64_t version = 0;
  std::uint32_t expires_low = 0;
  std::uint32_t flags = 0;
  std::uint16_t expires_high = 0;
  std::uint16_t key_size_and_1 = 0;
  std::uint32_t value_size = 0;

  [[nodiscard]] bool empty() const noexcept { return key_size_and_1 == 0; }
  [[nodiscard]] std::size_t database() const noexcept { return version % databases; }
  /// Of one that is not empty.
  [[nodiscard]] std::size_t key_size() const noexcept { return key_size_and_1 - std::size_t{1}; }
  [[nodiscard]] bool names_record() const noexcept { return !empty() && key_size() + value_size > room_in_slot; }
  [[nodiscard]] moment expires() const noexcept { return moment{expires_high} << 32 | expires_low; }
  void set_expires(moment when) noexcept {
    expires_low = static_cast<std::uint32_t>(when);
    expires_high = static_cast<std::uint16_t>(when >> 32);
  }
  void set_sizes(std::size_t key, std::size_t value) noexcept {
    key_size_and_1 = static_cast<std::uint16_t>(key + 1);
    value_size = static_cast<std::uint32_t>(value);
  }
  [[nodiscard]] bool has_expired(moment now) const noexcept { return expires() != 0 && expires() <= now; }
  [[nodiscard]] bool has_sizes() const noexcept { return key_size() <= longest_key && value_size <= longest_value; }
};

namespace {

static_assert(std::endian::native == std::endian::little);

std::uint64_t crc(std::uint64_t start, const void* bytes, std::size_t count) noexcept {
  return crc64_ecma_refl(start, static_cast<const unsigned char*>(bytes), count);
}

std::uint64_t hash_of(key_in key) noexcept { return crc(key.database, key.text.data(), key.text.size()); }

places places_of(std::uint64_t hash, std::uint64_t buckets) noexcept {
  const auto scale = [buckets](std::uint64_t half) { return static_cast<std::uint64_t>(half * buckets >> 32); };
  return {.first = scale(hash & UINT32_MAX), .second = scale(hash >> 32)};
}

// What a slot has in place of a key and a value that do not fit.
struct record_name {
  std::uint64_t offset;
  std::uint64_t stamp;
  std::uint64_t hash;
};

// What a record begins with.
struct record_head {
  std::uint64_t check;
  std::uint64_t stamp;
};
static_assert(sizeof(record_head) == record_head_bytes);

}  // namespace

// All of it.
struct slot_image : slot_head {
  std::array<char, room_in_slot> room;

  [[nodiscard]] std::string_view key() const noexcept { return {room.data(), key_size()}; }
  [[nodiscard]] std::string_view bytes() const noexcept { return {room.data() + key_size(), value_size}; }
  /// Of one that names a record.
  [[nodiscard]] record_place record() const noexcept {
    record_name name;
    std::memcpy(&name, room.data(), sizeof name);
    return {.offset = name.offset,
            .stamp = name.stamp,
            .hash = name.hash,
            .key_size = key_size(),
            .value_size = value_size,
            .flags = flags};
  }
  void set_record(const record_place& where) noexcept {
    const record_name name{.offset = where.offset, .stamp = where.stamp, .hash = where.hash};
    room = {};
    std::memcpy(room.data(), &name, sizeof name);
    set_sizes(where.key_size, where.value_size);
  }
  void set_bytes(std::string_view key, std::string_view value) noexcept {
    room = {};
    std::copy(value.begin(), value.end(), std::copy(key.begin(), key.end(), room.begin()));
    set_sizes(key.size(), value.size());
  }
  [[nodiscard]] std::size_t used_bytes() const noexcept {
    return sizeof(slot_head) + (names_record() ? sizeof(record_name) : key_size() + value_size);
  }
  /// Of a slot with sizes that can be.
  [[nodiscard]] std::uint64_t check_in(std::uint64_t bucket) const noexcept {
    return crc(crc(0, &bucket, sizeof bucket), &version, used_bytes() - sizeof check);
  }
  [[nodiscard]] bool is_whole(std::uint64_t bucket) const noexcept { return has_sizes() && check == check_in(bucket); }
};
static_assert(sizeof(slot_image) == slot_bytes && std::is_trivially_copyable_v<slot_image>);

// In memory that peers read while it is written. Its own threads write it through store_shared only, because of peers,
// and under the mutexes of its bucket, so that one that has these reads it as it is.
struct table::slot {
  alignas(std::uint64_t) std::array<std::byte, slot_bytes> bytes;

  [[nodiscard]] slot_head head() const noexcept {
    slot_head copy;
    std::memcpy(&copy, bytes.data(), sizeof copy);
    return copy;
  }
  [[nodiscard]] slot_image image() const noexcept {
    slot_image copy;
    std::memcpy(&copy, bytes.data(), sizeof copy);
    return copy;
  }
  [[nodiscard]] std::string_view text(std::size_t offset, std::size_t size) const noexcept {
    return {reinterpret_cast<const char*>(bytes.data()) + sizeof(slot_head) + offset, size};
  }
  // All of it: peers read what is there, and not only what the sizes cover.
  void store(const slot_image& what) noexcept { weft::mr::store_shared(bytes, std::as_bytes(std::span(&what, 1))); }
};

value::value(std::string_view bytes, std::uint32_t flags) : size_(bytes.size()), flags_(flags) {
  if (bytes.size() > small_.size()) {
    large_ = bytes;
  } else {
    std::copy(bytes.begin(), bytes.end(), small_.begin());
  }
}

bool is_key(std::string_view text) noexcept {
  const auto printable = [](char c) { return c > ' ' && c < '\x7f'; };
  return !text.empty() && fits_key(text) && std::all_of(text.begin(), text.end(), printable);
}

places places_of(key_in key, std::uint64_t buckets) noexcept { return places_of(hash_of(key), buckets); }

// ---- what readers do ----

outcome bucket_search::next(value& into, record_place& record) {
  std::array<slot_image, slots_in_bucket> slots;
  std::memcpy(slots.data(), bucket_.data(), bucket_bytes);
  while (slot_ != slots.size()) {
    const slot_image& each = slots[slot_++];
    if (each.empty() || !each.has_sizes() || each.database() != 0 || each.key_size() != key_.size()) continue;
    const bool elsewhere = each.names_record();
    if (elsewhere ? each.record().hash != hash_of(key_) : each.key() != key_) continue;
    if (!each.is_whole(number_)) return outcome::torn;
    if (each.has_expired(now_)) return outcome::absent;
    if (elsewhere) {
      record = each.record();
      return outcome::in_record;
    }
    into = value(each.bytes(), each.flags);
    return outcome::found;
  }
  // A slot that is being written may be the key's.
  const auto is_torn = [&](const slot_image& each) { return !each.empty() && !each.is_whole(number_); };
  return std::ranges::any_of(slots, is_torn) ? outcome::torn : outcome::absent;
}

outcome read_record(std::span<const std::byte> bytes, const record_place& place, std::string_view key, value& into) {
  if (bytes.size() != place.bytes()) return outcome::torn;
  record_head head;
  std::memcpy(&head, bytes.data(), sizeof head);
  const auto checked = bytes.subspan(sizeof head.check);
  if (head.stamp != place.stamp || head.check != crc(0, checked.data(), checked.size())) return outcome::torn;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof head, bytes.size() - sizeof head);
  if (text.substr(0, place.key_size) != key) return outcome::absent;
  into = value(text.substr(place.key_size), place.flags);
  return outcome::found;
}

// ---- the table ----

table::table(std::span<std::byte> memory, std::uint64_t buckets)
    : memory_(memory.data()),
      slots_(reinterpret_cast<slot*>(memory.data())),
      buckets_(buckets),
      ring_(memory.size() - buckets * bucket_bytes) {
  assert(buckets_ != 0 && reinterpret_cast<std::uintptr_t>(slots_) % alignof(slot) == 0);
  assert(memory.size() >= buckets * bucket_bytes + least_record_memory);
  longest_value_ = std::min(kv::longest_value, ring_.capacity() / 8 - record_head_bytes - longest_key);
}

table::bucket_locks::bucket_locks(table& of, const places& where) {
  std::mutex& first = of.mutexes_[where.first % locks];
  std::mutex& second = of.mutexes_[where.second % locks];
  // Everybody takes the two in one order.
  first_ = std::unique_lock(std::less<>()(&first, &second) ? first : second);
  if (&first != &second) second_ = std::unique_lock(std::less<>()(&first, &second) ? second : first);
}

std::span<table::slot, slots_in_bucket> table::slots_of(std::uint64_t bucket) const noexcept {
  return std::span<slot, slots_in_bucket>(slots_ + bucket * slots_in_bucket, slots_in_bucket);
}

std::uint64_t table::bucket_of(const slot& place) const noexcept {
  return static_cast<std::uint64_t>(&place - slots_) / slots_in_bucket;
}

std::string_view table::key_of(const slot& where, const slot_head& of) const noexcept {
  if (!of.names_record()) return where.text(0, of.key_size());
  const record_place record = where.image().record();
  return {reinterpret_cast<const char*>(memory_) + record.offset + record_head_bytes, record.key_size};
}

std::string_view table::value_of(const slot& where, const slot_head& of) const noexcept {
  const std::string_view key = key_of(where, of);
  return {key.data() + key.size(), of.value_size};
}

bool table::has(const slot& where, const slot_head& of, key_in key) const noexcept {
  return !of.empty() && of.database() == key.database && of.key_size() == key.text.size() &&
         key_of(where, of) == key.text;
}

// In place of what is there, whose record is the new one's or goes.
void table::put(slot& where, slot_image& made, std::size_t database, const attributes& beside) noexcept {
  const slot_image gone = where.image();
  made.flags = beside.flags;
  made.set_expires(beside.expires);
  made.version = next_version(database);
  made.check = made.check_in(bucket_of(where));
  count_expiry(gone.database(), gone.expires(), false);
  count_expiry(database, beside.expires, true);
  where.store(made);
  if (!gone.names_record()) return;
  if (!made.names_record()) return forget_record(gone.record());
  const bool stays = gone.record().stamp == made.record().stamp;  // or the ring comes round to it
  if (!stays) record_bytes_.fetch_sub(gone.record().bytes(), std::memory_order_relaxed);
}

std::size_t table::make_empty(slot& where) noexcept {
  slot_image nothing;
  nothing.room = {};
  const slot_image gone = where.image();
  count_expiry(gone.database(), gone.expires(), false);
  where.store(nothing);
  counts_[gone.database()].size.fetch_sub(1, std::memory_order_relaxed);
  if (!gone.names_record()) return 0;
  forget_record(gone.record());
  return gone.record().bytes();
}

// No slot names it any more, and nothing of it is left. Its place is free once the ring has come round.
void table::forget_record(const record_place& gone) noexcept {
  fill_with_zeroes(gone.offset, gone.bytes());
  record_bytes_.fetch_sub(gone.bytes(), std::memory_order_relaxed);
}

void table::fill_with_zeroes(std::uint64_t offset, std::uint64_t bytes) noexcept {
  static constexpr std::array<std::byte, 4096> zeroes{};
  std::span<std::byte> rest(memory_ + offset, bytes);
  while (!rest.empty()) {
    const std::size_t count = std::min(rest.size(), zeroes.size());
    weft::mr::store_shared(rest.first(count), std::span(zeroes).first(count));
    rest = rest.subspan(count);
  }
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

void table::set(key_in key, std::string_view bytes, const attributes& beside, moment now) {
  entry(*this, key, now, bytes.size()).store(bytes, beside);
}

std::optional<table::reading> table::find(key_in key, moment now) noexcept {
  if (!fits_key(key.text)) return std::nullopt;
  const places where = places_of(key, buckets_);
  for (const std::uint64_t bucket : {where.first, where.second}) {
    std::unique_lock lock(mutexes_[bucket % locks]);
    for (slot& each : slots_of(bucket)) {
      const slot_head what = each.head();
      if (!has(each, what, key)) continue;
      if (is_cleared(what.version)) {
        make_empty(each);
        return std::nullopt;
      }
      if (what.has_expired(now)) return std::nullopt;
      return reading(std::move(lock), value_of(each, what), what.flags);
    }
  }
  return std::nullopt;
}

// ---- records ----

// The book of records is locked, and no bucket. Yields the record of `own`, if that is one of those that make room: it
// is not in the ring any more, and its slot still names it.
std::optional<record_ring::record> table::make_room(std::uint64_t bytes, key_in own, moment now) {
  move_ahead(bytes, now);
  std::optional<record_ring::record> passed;
  while (!ring_.fits(bytes)) {
    const record_ring::record oldest = ring_.oldest();
    if (forget_oldest(own, now)) passed = oldest;
  }
  return passed;
}

// Before there is need, and a few times as much as is set, so that nobody has much to move that is in his way: one
// record more at most, and none more on the average.
void table::move_ahead(std::uint64_t bytes, moment now) {
  const std::uint64_t capacity = ring_.capacity();
  const std::uint64_t share = 4 * bytes;
  credit_ = std::min(credit_ + share, capacity / 2);
  const auto may_go_on = [&] {
    return ring_.free_bytes() < capacity / 4 && record_bytes() <= capacity / 4 * 3 && ring_.oldest().bytes <= credit_;
  };
  for (std::uint64_t passed = 0; passed < share && may_go_on();) {
    const std::uint64_t next = ring_.oldest().bytes;
    if (!move_oldest(now)) return;
    credit_ -= next;
    passed += next;
  }
}

// False if there is no room for it.
bool table::move_oldest(moment now) {
  const record_ring::record oldest = ring_.oldest();
  const bucket_locks held(*this, places_of(oldest.hash, buckets_));
  slot* const named_by = slot_of(oldest);
  if (!is_wanted(named_by, now)) {
    drop_oldest(named_by);
    return true;
  }
  if (!ring_.fits(oldest.bytes)) return false;
  move_record(*named_by, oldest);
  ring_.drop_oldest();
  return true;
}

// True if it is that of `own`, which is left as it is.
bool table::forget_oldest(key_in own, moment now) {
  const record_ring::record oldest = ring_.oldest();
  const bucket_locks held(*this, places_of(oldest.hash, buckets_));
  slot* const named_by = slot_of(oldest);
  if (named_by != nullptr && has(*named_by, named_by->head(), own)) {
    ring_.drop_oldest();
    return true;
  }
  evicted_.fetch_add(is_wanted(named_by, now), std::memory_order_relaxed);
  drop_oldest(named_by);
  return false;
}

// With all that is left of it.
void table::drop_oldest(slot* named_by) noexcept {
  const record_ring::record oldest = ring_.oldest();
  ring_.drop_oldest();
  if (named_by != nullptr) {
    make_empty(*named_by);
    return;
  }
  const std::uint64_t offset = slots_bytes() + oldest.offset;
  record_head head;
  std::memcpy(&head, memory_ + offset, sizeof head);
  if (head.stamp == oldest.stamp) fill_with_zeroes(offset, oldest.bytes);
}

bool table::is_wanted(const slot* named_by, moment now) const noexcept {
  if (named_by == nullptr) return false;
  const slot_head what = named_by->head();
  return !is_cleared(what.version) && !what.has_expired(now);
}

table::slot* table::slot_of(const record_ring::record& which) const noexcept {
  const places where = places_of(which.hash, buckets_);
  for (const std::uint64_t bucket : {where.first, where.second}) {
    for (slot& each : slots_of(bucket)) {
      if (each.head().names_record() && each.image().record().stamp == which.stamp) return &each;
    }
  }
  return nullptr;
}

// To the end of the ring. Who has read the slot before finds the old place as it was, or zeroes.
void table::move_record(slot& named_by, const record_ring::record& from) {
  slot_image made = named_by.image();
  const record_place before = made.record();
  record_place after = before;
  after.offset = slots_bytes() + ring_.append(from.bytes, from.stamp, from.hash);
  weft::mr::store_shared({memory_ + after.offset, before.bytes()}, {memory_ + before.offset, before.bytes()});
  record_bytes_.fetch_add(before.bytes(), std::memory_order_relaxed);
  made.set_record(after);
  made.check = made.check_in(bucket_of(named_by));
  named_by.store(made);
  forget_record(before);
}

record_place table::append_record(key_in key, std::uint64_t hash, std::string_view bytes) {
  record_place made{
      .stamp = next_version(key.database), .hash = hash, .key_size = key.text.size(), .value_size = bytes.size()};
  made.offset = slots_bytes() + ring_.append(made.bytes(), made.stamp, hash);
  record_head head{.check = 0, .stamp = made.stamp};
  head.check = crc(0, &head.stamp, sizeof head.stamp);
  std::span<std::byte> rest(memory_ + made.offset + sizeof head, made.bytes() - sizeof head);
  for (const std::string_view part : {key.text, bytes}) {
    head.check = crc(head.check, part.data(), part.size());
    weft::mr::store_shared(rest.first(part.size()), std::as_bytes(std::span(part)));
    rest = rest.subspan(part.size());
  }
  weft::mr::store_shared({memory_ + made.offset, sizeof head}, std::as_bytes(std::span(&head, 1)));
  record_bytes_.fetch_add(made.bytes(), std::memory_order_relaxed);
  return made;
}

// ---- clearing ----

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
  constexpr std::size_t enough = kv::longest_value;  // that is filled with zeroes
  const std::uint64_t end = next_ + std::min(buckets, of_.buckets_ - next_);
  for (std::size_t removed = 0; next_ != end && removed < enough; ++next_) {
    const std::lock_guard lock(of_.mutexes_[next_ % locks]);
    for (slot& each : of_.slots_of(next_)) {
      const slot_head what = each.head();
      if (!what.empty() && removes(what.version)) removed += of_.make_empty(each);
    }
  }
  return next_ != of_.buckets_;
}

// ---- an entry ----

table::entry::entry(table& of, key_in key, moment now, std::optional<std::size_t> will_store)
    : of_(of),
      key_(key),
      hash_(hash_of(key)),
      where_(places_of(hash_, of.buckets_)),
      records_(lock_records(of, key, will_store)),
      passed_(make_room(will_store, now)),
      locks_(of, where_) {
  find_place(now);
  if (!passed_) return;
  const slot_image found = place_->image();
  const bool is_there = mine_ && found.names_record() && found.record().stamp == passed_->stamp;
  if (!is_there) passed_.reset();  // another thread has removed it meanwhile
}

// What has made room for a value that was not stored goes all the same.
table::entry::~entry() {
  if (!passed_) return;
  of_.evicted_.fetch_add(there_, std::memory_order_relaxed);
  of_.make_empty(*place_);
}

std::unique_lock<std::mutex> table::entry::lock_records(table& of, key_in key, std::optional<std::size_t> will_store) {
  assert(fits_key(key.text) && (!will_store || *will_store <= of.longest_value()));
  if (!will_store || key.text.size() + *will_store <= room_in_slot) return {};
  return std::unique_lock(of.records_);
}

std::optional<record_ring::record> table::entry::make_room(std::optional<std::size_t> will_store, moment now) {
  if (!records_) return std::nullopt;
  return of_.make_room(record_head_bytes + key_.text.size() + *will_store, key_, now);
}

// Where it is; else, of what is empty or has expired, in the emptier bucket; else what is oldest.
void table::entry::find_place(moment now) noexcept {
  slot* empty = nullptr;
  std::size_t most_empty = 0;
  slot* oldest = nullptr;
  std::uint64_t oldest_version = UINT64_MAX;
  for (const std::uint64_t bucket : {where_.first, where_.second}) {
    slot* first_empty = nullptr;
    std::size_t empty_here = 0;
    for (slot& each : of_.slots_of(bucket)) {
      const slot_head what = each.head();
      const bool cleared = of_.is_cleared(what.version);
      if (of_.has(each, what, key_)) {
        if (!cleared) {
          place_ = &each;
          mine_ = true;
          there_ = !what.has_expired(now);
          return;
        }
        of_.make_empty(each);
      }
      if (what.empty() || cleared || what.has_expired(now)) {
        if (++empty_here == 1) first_empty = &each;
      } else if (what.version < oldest_version) {
        oldest_version = what.version;
        oldest = &each;
      }
    }
    // Most are found by the first read, as long as there is room to choose.
    const bool roomy = bucket == where_.first && empty_here > slots_in_bucket / 4;
    if (empty_here > most_empty) {
      empty = first_empty;
      most_empty = roomy ? slots_in_bucket : empty_here;
    }
  }
  place_ = empty != nullptr ? empty : oldest;
  evicts_ = empty == nullptr;
}

std::string_view table::entry::view() const noexcept { return of_.value_of(*place_, place_->head()); }

attributes table::entry::beside() const noexcept {
  const slot_head what = place_->head();
  return {.flags = what.flags, .expires = what.expires()};
}

void table::entry::store(std::string_view bytes, const attributes& beside) {
  assert(bytes.size() <= of_.longest_value() && beside.expires <= latest_moment);
  slot_image made;
  if (key_.text.size() + bytes.size() <= room_in_slot) {
    made.set_bytes(key_.text, bytes);
  } else {
    assert(records_.owns_lock() && "a value of so many bytes was not announced");
    if (passed_) of_.fill_with_zeroes(of_.slots_bytes() + passed_->offset, passed_->bytes);
    made.set_record(of_.append_record(key_, hash_, bytes));
  }
  if (!mine_) {
    const slot_head gone = place_->head();
    if (!gone.empty()) of_.counts_[gone.database()].size.fetch_sub(1, std::memory_order_relaxed);
    of_.counts_[key_.database].size.fetch_add(1, std::memory_order_relaxed);
    of_.evicted_.fetch_add(evicts_, std::memory_order_relaxed);
  }
  of_.put(*place_, made, key_.database, beside);
  passed_.reset();
}

void table::entry::change(const attributes& beside) noexcept {
  slot_image made = place_->image();
  of_.put(*place_, made, key_.database, beside);
}

void table::entry::erase() noexcept {
  if (mine_) of_.make_empty(*place_);
  passed_.reset();
}

}  // namespace kv
