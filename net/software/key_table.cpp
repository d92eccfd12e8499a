// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/shared_words.hpp>
#include <weft/net/software/direct_memory.hpp>
#include <weft/net/software/kernel_copy.hpp>
#include <weft/net/software/key_table.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/system/random.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace weft::net::software {
namespace {

// Of this thread's readers that are inside batches, the one that entered last; outer_ leads to the others.
constinit thread_local key_table::reader* innermost = nullptr;

}  // namespace

// One of several ranges.
struct key_table::piece {
  std::uint64_t end;  // the offset of its end in the whole memory
  std::span<std::byte> memory;
};

// Constant while it is in the table, except for `revoked` and `enabled`; `next`, which changes with its neighbours;
// `counter`, `direct` and `keeps_pages`, which are set before a peer is told the key, but maybe after a peer has
// guessed it; and `may_shrink`, which is set while the key is disabled.
struct key_table::entry : key_list::node {
  key_rights rights;
  std::atomic<bool> revoked{false};  // by the peer
  std::atomic<bool> enabled{true};
  std::uint64_t address;
  std::uint64_t length;
  std::byte* memory;  // all of it, if there are no pieces
  stream_id stream;
  bool may_shrink;
  const mr::detail::peer_gate* gate;
  std::atomic<direct_memory*> direct{nullptr};
  std::atomic<bool> keeps_pages{false};  // set by share(): nobody can take pages away, whatever may_shrink says
  std::atomic<mr::detail::write_counter_core*> counter{nullptr};
  std::vector<piece> pieces;

  // Called by readers that have found the entry open.
  void count_write() const noexcept {
    if (auto* const own = counter.load(std::memory_order_acquire)) own->add();
    if (gate != nullptr && gate->counter != nullptr) gate->counter->add();
  }

  [[nodiscard]] reader::place at(std::uint64_t from, std::uint64_t bytes) const noexcept;
};

key_table::reader::place key_table::entry::at(std::uint64_t from, std::uint64_t bytes) const noexcept {
  if (pieces.empty()) {
    direct_memory* const whole = direct.load(std::memory_order_acquire);
    const bool may_vanish = may_shrink && !keeps_pages.load(std::memory_order_relaxed);
    return {access_status::ok, memory + from, bytes, may_vanish, whole, rights.remote_atomic};
  }
  const auto found = std::upper_bound(pieces.begin(), pieces.end(), from,
                                      [](std::uint64_t place, const piece& item) { return place < item.end; });
  if (found == pieces.end()) return {access_status::ok, memory, 0, may_shrink};  // no bytes, at the end of the region
  const std::uint64_t left = found->end - from;
  std::byte* const data = found->memory.data() + (found->memory.size() - left);
  return {access_status::ok, data, std::min(left, bytes), may_shrink, nullptr, rights.remote_atomic};
}

// erase() is safe because the table's atomic operations are in one total order, that of memory_order_seq_cst: a reader
// makes its turn odd before it walks a list; erase() unlinks the entry before it loads the turn. So either the reader
// does not find the entry, or erase() sees that it has to wait.
struct alignas(64) key_table::turn {
  std::atomic<std::uint64_t> value{0};  // odd: inside a batch
  turn* next = nullptr;                 // constant once the turn is in the table
  bool taken = true;                    // a reader uses it; guarded by the mutex
};

stream_id next_stream() noexcept {
  static constinit std::atomic<stream_id> last{any_stream};
  return ++last;
}

key_table::key_table(system_calls& calls) : calls_(calls) {}

key_table::~key_table() {
  for (turn* item = turns_.load(); item != nullptr;) {
    assert(!item->taken && "a table of keys was destroyed before its readers");
    delete std::exchange(item, item->next);
  }
  keys_.clear([](key_list::node& item) { delete static_cast<entry*>(&item); });
}

key_table::entry* key_table::find(std::uint32_t stag) const noexcept { return static_cast<entry*>(keys_.find(stag)); }

std::uint32_t key_table::random_number() {
  if (random_left_ == 0) {
    weft::detail::draw(calls_, std::as_writable_bytes(std::span(random_)));
    random_left_ = random_.size();
  }
  return random_[--random_left_];
}

std::uint32_t key_table::draw_key() {
  if (keys_.size() >= capacity) {
    throw error(errc::no_memory, fmt::format("the table of keys is full, with {} regions open to peers", keys_.size()));
  }
  for (;;) {
    const std::uint32_t stag = random_number();
    if (stag != 0 && find(stag) == nullptr && !erased_.contain(stag)) return stag;
  }
}

std::uint32_t key_table::open(const opening& what) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t stag = draw_key();
  put(stag, what);
  return stag;
}

void key_table::open_as(std::uint32_t stag, const opening& what) {
  if (stag == 0) throw error(errc::invalid_argument, "a requested_key of 0 is reserved");
  const std::lock_guard lock(mutex_);
  put(stag, what);
}

std::uint32_t key_table::insert(std::span<std::byte> memory, std::uint64_t address, key_rights rights,
                                stream_id stream) {
  return open({.ranges = {&memory, 1}, .address = address, .rights = rights, .stream = stream});
}

void key_table::insert_as(std::uint32_t stag, std::span<std::byte> memory, std::uint64_t address, key_rights rights,
                          stream_id stream) {
  open_as(stag, {.ranges = {&memory, 1}, .address = address, .rights = rights, .stream = stream});
}

void key_table::put(std::uint32_t stag, const opening& what) {
  if (find(stag) != nullptr)
    throw error(errc::duplicate_key, fmt::format("register memory with requested_key {:#010x}", stag));
  auto item = std::make_unique<entry>();
  item->stag = stag;
  item->rights = what.rights;
  item->address = what.address;
  item->length = 0;
  item->memory = what.ranges.front().data();
  item->stream = what.stream;
  item->may_shrink = what.may_shrink;
  item->gate = what.gate;
  item->direct.store(what.direct, std::memory_order_relaxed);
  item->enabled.store(what.enabled, std::memory_order_relaxed);
  for (const std::span<std::byte> range : what.ranges) {
    item->length += range.size();
    if (what.ranges.size() > 1) item->pieces.push_back({item->length, range});
  }
  keys_.insert(*item.release());
}

void key_table::erase(std::uint32_t stag, bool by_peer) noexcept {
  std::unique_ptr<entry> item;
  {
    const std::lock_guard lock(mutex_);
    item.reset(static_cast<entry*>(keys_.remove(stag)));
    if (item == nullptr) return;
    erased_.add(stag, by_peer || item->revoked.load(std::memory_order_relaxed));
  }
  wait_for_readers();
}

void key_table::count_writes(std::uint32_t stag, mr::detail::write_counter_core& counter) noexcept {
  const std::lock_guard lock(mutex_);
  if (entry* const item = find(stag)) item->counter.store(&counter, std::memory_order_release);
}

void key_table::enable(std::uint32_t stag) noexcept {
  const std::lock_guard lock(mutex_);
  if (entry* const item = find(stag)) item->enabled.store(true);
}

void key_table::share(std::uint32_t stag, direct_memory& whole) noexcept {
  const std::lock_guard lock(mutex_);
  entry* const item = find(stag);
  if (item == nullptr) return;
  item->keeps_pages.store(!whole.may_lose_pages(), std::memory_order_relaxed);
  item->direct.store(&whole, std::memory_order_release);
}

void key_table::note_that_it_may_shrink(std::uint32_t stag) noexcept {
  const std::lock_guard lock(mutex_);
  if (entry* const item = find(stag)) item->may_shrink = true;
}

void key_table::disable(std::uint32_t stag) noexcept {
  {
    const std::lock_guard lock(mutex_);
    entry* const item = find(stag);
    if (item == nullptr) return;
    item->enabled.store(false);
  }
  wait_for_readers();
}

// Called without the mutex, because a reader may need it inside its batch. Two threads may erase inside batches at the
// same time, so the readers of each step outside while it waits: they keep nothing that they looked up before.
void key_table::wait_for_readers() noexcept {
  for (reader* own = innermost; own != nullptr; own = own->outer_) {
    if (&own->table_ != this) continue;
    own->written_to_ = nullptr;
    own->turn_->value.fetch_add(1);
  }
  for (const turn* item = turns_.load(); item != nullptr; item = item->next) {
    const std::uint64_t seen = item->value.load();
    if (seen % 2 == 0) continue;
    while (item->value.load() == seen) std::this_thread::yield();
  }
  for (const reader* own = innermost; own != nullptr; own = own->outer_) {
    if (&own->table_ == this) own->turn_->value.fetch_add(1);
  }
}

bool key_table::was_revoked(std::uint32_t stag) const noexcept {
  const std::lock_guard lock(mutex_);
  return erased_.contain_ours(stag);
}

std::size_t key_table::size() const noexcept {
  const std::lock_guard lock(mutex_);
  return keys_.size();
}

// ---- readers ----

key_table::reader::reader(key_table& table) : table_(table), turn_(nullptr) {
  const std::lock_guard lock(table_.mutex_);
  for (turn* item = table_.turns_.load(); item != nullptr && turn_ == nullptr; item = item->next) {
    if (!std::exchange(item->taken, true)) turn_ = item;
  }
  if (turn_ != nullptr) return;
  turn_ = new turn;
  turn_->next = table_.turns_.load();
  table_.turns_.store(turn_);
}

key_table::reader::~reader() {
  assert(depth_ == 0);
  const std::lock_guard lock(table_.mutex_);
  turn_->taken = false;
}

bool key_table::reader::is_inside() noexcept { return innermost != nullptr; }

void key_table::reader::enter() noexcept {
  if (depth_++ != 0) return;
  written_to_ = nullptr;
  outer_ = std::exchange(innermost, this);
  turn_->value.store(turn_->value.load(std::memory_order_relaxed) + 1);
}

void key_table::reader::leave() noexcept {
  if (--depth_ != 0) return;
  assert(innermost == this);
  innermost = outer_;
  turn_->value.store(turn_->value.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

// In disable(), `enabled` and a reader's turn are ordered as the list and the turn are in erase(): see key_table::turn.
bool key_table::reader::is_open(const entry* item) noexcept {
  return item != nullptr && !item->revoked.load(std::memory_order_relaxed) && item->enabled.load() &&
         (item->gate == nullptr || item->gate->open.load());
}

key_table::reader::place key_table::reader::find(std::uint32_t stag, std::uint64_t offset, std::uint64_t bytes,
                                                 right wanted, stream_id stream) const noexcept {
  assert(depth_ != 0 && "look-up outside of a batch");
  return look_up(table_.find(stag), offset, bytes, wanted, stream);
}

inline key_table::reader::place key_table::reader::look_up(const entry* item, std::uint64_t offset, std::uint64_t bytes,
                                                           right wanted, stream_id stream) const noexcept {
  const auto refuse = [](access_status why) -> place { return {why, nullptr, 0}; };
  if (!is_open(item)) return refuse(access_status::invalid_stag);
  // mutant: another one's key
  if (item->stream != any_stream && item->stream != stream) return refuse(access_status::not_associated);
  const bool allowed = wanted == right::read    ? item->rights.remote_read
                       : wanted == right::write ? item->rights.remote_write
                                                : item->rights.remote_atomic;
  if (!allowed) return refuse(access_status::access);  // mutant: skip the check of rights
  if (bytes != 0 && bytes - 1 > std::numeric_limits<std::uint64_t>::max() - offset) return refuse(access_status::wrap);
  if (offset < item->address) return refuse(access_status::bounds);
  const std::uint64_t from = offset - item->address;
  // mutant: skip the bounds check
  if (from > item->length || bytes > item->length - from) return refuse(access_status::bounds);
  return item->at(from, bytes);
}

access_status key_table::reader::read(std::uint32_t stag, std::uint64_t offset, std::span<std::byte> out,
                                      stream_id stream) noexcept {
  place from = find(stag, offset, out.size(), right::read, stream);
  while (from.status == access_status::ok && !out.empty()) {
    if (!from.may_shrink) {
      mr::load_shared({from.data, from.size}, out.first(from.size));
    } else if (!copy_out_of({from.data, from.size}, out.first(from.size))) {
      return access_status::bounds;
    }
    out = out.subspan(from.size);
    offset += from.size;
    if (!out.empty()) from = find(stag, offset, out.size(), right::read, stream);
  }
  std::atomic_thread_fence(std::memory_order_acquire);  // later loads must not come before those of the copy
  return from.status;
}

void key_table::reader::written(std::uint32_t stag, stream_id stream) noexcept {
  assert(depth_ != 0 && "look-up outside of a batch");
  const bool known = written_to_ != nullptr && written_to_->stag == stag;
  const entry* const item = known ? written_to_ : table_.find(stag);
  if (!is_open(item) || !item->rights.remote_write) return;
  if (item->stream == any_stream || item->stream == stream) item->count_write();
}

key_table::reader::place key_table::reader::write_place(std::uint32_t stag, std::uint64_t offset, std::uint64_t bytes,
                                                        stream_id stream) noexcept {
  assert(depth_ != 0 && "look-up outside of a batch");
  const entry* const item = table_.find(stag);
  const place found = look_up(item, offset, bytes, right::write, stream);
  written_to_ = found.status == access_status::ok ? item : nullptr;
  return found;
}

key_table::reader::place key_table::reader::read_place(std::uint32_t stag, std::uint64_t offset, std::uint64_t bytes,
                                                       stream_id stream) const noexcept {
  return find(stag, offset, bytes, right::read, stream);
}

key_table::reader::range key_table::reader::range_of(std::uint32_t stag) const noexcept {
  assert(depth_ != 0 && "look-up outside of a batch");
  const entry* const item = table_.find(stag);
  if (item == nullptr || !item->pieces.empty()) return {};
  return {item->address, {item->memory, item->length}, item->rights};
}

// Both the peer's offset and the local address must be aligned: in a zero-based region they may differ by anything.
key_table::reader::place key_table::reader::atomic_place(std::uint32_t stag, std::uint64_t offset,
                                                         stream_id stream) const noexcept {
  constexpr std::size_t size = sizeof(std::uint64_t);
  const place found = find(stag, offset, size, right::atomic, stream);
  const bool aligned =
      offset % size == 0 && reinterpret_cast<std::uintptr_t>(found.data) % size == 0 && found.size == size;
  if (found.status == access_status::ok && !aligned) return {access_status::misaligned, nullptr, 0};
  return found;
}

access_status key_table::reader::atomic(const atomic_request& asked, std::uint64_t& previous, stream_id stream,
                                        bool counts) noexcept {
  const place at = atomic_place(asked.stag, asked.offset, stream);
  if (at.status != access_status::ok) return at.status;
  if (at.may_shrink && !can_store_word({at.data, sizeof(std::uint64_t)})) return access_status::bounds;
  const std::atomic_ref<std::uint64_t> word(*reinterpret_cast<std::uint64_t*>(at.data));
  std::uint64_t seen = word.load();
  while (!word.compare_exchange_weak(seen, apply(asked, seen))) {
  }
  previous = seen;  // mutant: what a word holds
  const entry* const item = counts ? table_.find(asked.stag) : nullptr;
  if (item != nullptr && changes(asked, seen)) item->count_write();  // null: not to be counted, or the key is erased
  return access_status::ok;
}

access_status key_table::reader::invalidate(std::uint32_t stag, stream_id stream) noexcept {
  assert(depth_ != 0 && "look-up outside of a batch");
  entry* const item = table_.find(stag);
  if (!is_open(item)) return access_status::invalid_stag;
  if (item->stream == any_stream) return access_status::access;
  if (item->stream != stream) return access_status::not_associated;
  item->revoked.store(true, std::memory_order_relaxed);
  return access_status::ok;
}

}  // namespace weft::net::software
