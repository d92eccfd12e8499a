// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/depot.hpp>
#include <weft/mr/pool/poison.hpp>
#include <weft/mr/system/page.hpp>

#include <algorithm>
#include <cassert>
#include <new>
#include <string_view>
#include <utility>

namespace weft::mr::detail {
namespace {

// A slab has as many chunks as one of its blocks needs, or more, up to this many, if it would waste more than an eighth
// of its memory otherwise.
constexpr std::size_t longest_slab = 8;

// A different number for each block, so that a buffer that outlives its block does not match the next block there.
std::uint64_t next_life() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  return last.fetch_add(0x9E3779B97F4A7C15, std::memory_order_relaxed) & ~(block::one_life - 1);
}

constexpr std::size_t chunks_for(std::size_t bytes) noexcept { return (bytes + chunk_bytes - 1) / chunk_bytes; }

constexpr std::size_t good_run(std::size_t block_bytes) noexcept {
  std::size_t chunks = chunks_for(block_bytes);
  while (chunks < longest_slab && chunks * chunk_bytes % block_bytes * 8 > chunks * chunk_bytes) ++chunks;
  return chunks;
}

}  // namespace

block& slab::take() noexcept {
  block& item = *free_;
  free_ = std::exchange(item.next, nullptr);
  ++taken_;
  return item;
}

void slab::give(block& item) noexcept {
  item.next = free_;
  free_ = &item;
  --taken_;
}

void slab::note_taken(const block& item, const std::source_location& where) noexcept {
  if (origins_ == nullptr) return;
  origin& noted = origins_[static_cast<std::size_t>(&item - blocks_.get())];
  noted.line.store(where.line(), std::memory_order_relaxed);
  noted.file.store(where.file_name(), std::memory_order_relaxed);
}

void slab::note_freed(const block& item) noexcept {
  if (origins_ == nullptr) return;
  origins_[static_cast<std::size_t>(&item - blocks_.get())].file.store(nullptr, std::memory_order_relaxed);
}

carved_arena::carved_arena(std::unique_ptr<arena> memory, depot& home, bool whole)
    : memory_(std::move(memory)),
      home_(&home),
      bytes_(memory_->size()),
      whole_(whole),
      slabs_(whole ? 1 : bytes_ / chunk_bytes),
      used_(slabs_.size()),
      longest_run_(slabs_.size()) {
  index made{this};
  unlisted_ = made.extract(made.begin());
}

void carved_arena::run() noexcept {
  memory_.reset();  // mutant: lose an arena
  home_->listener_.retired(*home_, bytes_);
}

// Returns the index of a free run's first chunk. The arena must have a free run of that length.
std::size_t carved_arena::find_run(std::size_t chunks) const noexcept {
  std::size_t length = 0;
  std::size_t i = 0;
  for (; length != chunks; ++i) length = used_[i] ? 0 : length + 1;
  return i - chunks;
}

void carved_arena::measure() noexcept {
  longest_run_ = 0;
  std::size_t length = 0;
  for (const bool used : used_) {
    length = used ? 0 : length + 1;
    longest_run_ = std::max(longest_run_, length);
  }
}

depot::~depot() { assert(arenas_ == 0 && taken_bytes_ == 0); }

block* depot::take(std::size_t bytes) noexcept {
  if (!shares_arena(bytes)) return take_whole(bytes);
  const std::size_t size_class = class_of(bytes);
  if (block* const item = take_cut(size_class)) return item;
  slab* source = cut(size_class);
  if (source == nullptr && merge_idle(good_run(class_bytes(size_class)))) source = cut(size_class);
  return source != nullptr ? take_from(*source) : nullptr;
}

std::size_t depot::most_blocks(std::size_t bytes, std::size_t limit) const noexcept {
  if (bytes > limit) return 0;
  if (!shares_arena(bytes)) return limit / round_up(std::max<std::size_t>(bytes, 1), page_bytes());
  const std::size_t block_bytes = class_bytes(class_of(bytes));
  const auto blocks_in = [block_bytes](std::size_t chunks) { return chunks * chunk_bytes / block_bytes; };
  const auto blocks_of_arena = [&](std::size_t arena) {
    const std::size_t chunks = arena / chunk_bytes;
    const std::size_t good = good_run(block_bytes);
    const std::size_t least = chunks_for(block_bytes);
    return chunks / good * blocks_in(good) + chunks % good / least * blocks_in(least);
  };
  return limit / arena_bytes_ * blocks_of_arena(arena_bytes_) + blocks_of_arena(limit % arena_bytes_);
}

block* depot::take_cut(std::size_t size_class) noexcept {
  slab* const source = with_free_[size_class].first();
  return source != nullptr ? take_from(*source) : nullptr;
}

block* depot::take_from(slab& source) noexcept {
  if (source.taken_ == 0) begin_use(source);
  block& item = source.take();
  ++source.home_->taken_;
  taken_bytes_ += item.capacity;
  if (source.free_ == nullptr && source.size_class_ != whole_class) with_free_[source.size_class_].remove(source);
  return &item;
}

block* depot::take_whole(std::size_t bytes) noexcept {
  for (carved_arena& home : idle_[1]) {  // few arenas, because trim() gives idle ones up
    if (home.bytes_ < bytes) continue;
    if (slab* const source = home.slabs_[0] ? home.slabs_[0].get() : cut(home, 0, 1, whole_class, home.bytes_)) {
      return take_from(*source);
    }
  }
  return nullptr;
}

void depot::give(block& item) noexcept {
  slab& source = *item.home;
  const bool had_none = source.free_ == nullptr;
  source.give(item);
  --source.home_->taken_;
  taken_bytes_ -= item.capacity;
  if (had_none && source.size_class_ != whole_class) with_free_[source.size_class_].push_front(source);
  if (source.taken_ == 0) end_use(source);
}

void depot::begin_use(slab& item) noexcept {
  carved_arena& home = *item.home_;
  if (home.idle()) {
    idle_[home.whole_].remove(home);
  }
  if (item.size_class_ == whole_class) return;
  idle_slabs_.remove(item);
}

void depot::end_use(slab& item) noexcept {
  carved_arena& home = *item.home_;
  if (home.idle()) {
    idle_[home.whole_].push_front(home);
  }
  if (item.size_class_ == whole_class) return;
  idle_slabs_.push_front(item);
}

slab* depot::cut(std::size_t size_class) noexcept {
  const std::size_t bytes = class_bytes(size_class);
  if (slab* const item = cut(size_class, good_run(bytes))) return item;
  return cut(size_class, chunks_for(bytes));
}

slab* depot::cut(std::size_t size_class, std::size_t chunks) noexcept {
  const auto found = by_room_.lower_bound(chunks);
  if (found == by_room_.end()) return nullptr;
  return cut(**found, (*found)->find_run(chunks), chunks, size_class, class_bytes(size_class));
}

slab* depot::cut(carved_arena& home, std::size_t first, std::size_t chunks, std::size_t size_class,
                 std::size_t block_bytes) noexcept {
  const std::size_t count = size_class == whole_class ? 1 : chunks * chunk_bytes / block_bytes;
  std::unique_ptr<slab> item(new (std::nothrow) slab);
  if (item == nullptr) return nullptr;
  item->blocks_.reset(new (std::nothrow) block[count]);
  if (item->blocks_ == nullptr) return nullptr;
  if constexpr (marks_free_memory) item->origins_.reset(new (std::nothrow) slab::origin[count]);
  item->count_ = count;
  item->home_ = &home;
  item->listener_ = &listener_;
  item->stack_ = static_cast<std::uint8_t>(size_class < cached_classes ? stack_of(which_, size_class) : no_stack);
  item->size_class_ = size_class;
  item->first_chunk_ = first;
  item->chunks_ = chunks;
  std::byte* const from = home.memory_->data() + first * chunk_bytes;
  for (std::size_t i = count; i-- > 0;) {
    block& piece = item->blocks_[i];
    piece.home = item.get();
    piece.data = from + i * block_bytes;
    piece.capacity = block_bytes;
    piece.record = &home.memory_->record();
    piece.state.store(next_life(), std::memory_order_relaxed);
    piece.next = item->free_;
    item->free_ = &piece;
  }
  std::fill_n(home.used_.begin() + static_cast<std::ptrdiff_t>(first), chunks, true);
  if (size_class != whole_class) {
    with_free_[size_class].push_front(*item);
    idle_slabs_.push_front(*item);
    relist(home);
  }
  return (home.slabs_[first] = std::move(item)).get();
}

void depot::relist(carved_arena& item) noexcept {
  item.unlisted_ = by_room_.extract(item.listed_);
  item.measure();
  item.listed_ = by_room_.insert(std::move(item.unlisted_)).position;
}

// Slabs are kept when their last block is freed, because a block of that size is likely to be needed again. When no
// free run is long enough, this turns idle slabs into free chunks, until one arena has such a run or no idle slab is
// left. False if there was no idle slab.
bool depot::merge_idle(std::size_t chunks) noexcept {
  bool merged = false;
  while (slab* const item = idle_slabs_.first()) {
    const carved_arena& home = *item->home_;
    merge(*item);
    merged = true;
    if (home.longest_run_ >= chunks) break;
  }
  return merged;
}

void depot::merge(slab& item) noexcept {
  carved_arena& home = *item.home_;
  const bool shared = item.size_class_ != whole_class;
  if (shared) {
    with_free_[item.size_class_].remove(item);
    idle_slabs_.remove(item);
  }
  std::fill_n(home.used_.begin() + static_cast<std::ptrdiff_t>(item.first_chunk_), item.chunks_, false);
  home.slabs_[item.first_chunk_].reset();
  if (shared) relist(home);
}

std::vector<depot::taken_at> depot::taken() const {
  std::vector<taken_at> all;
  const auto add = [&all](const char* file, std::uint32_t line, std::size_t bytes) {
    for (taken_at& known : all) {
      if (known.line != line || std::string_view(known.file) != file) continue;
      ++known.blocks;
      known.bytes += bytes;
      return;
    }
    all.push_back({file, line, 1, bytes});
  };
  for (const carved_arena& home : all_) {
    for (const auto& piece : home.slabs_) {
      if (piece == nullptr || piece->origins_ == nullptr) continue;
      for (std::size_t i = 0; i < piece->count_; ++i) {
        const slab::origin& noted = piece->origins_[i];
        const char* const file = noted.file.load(std::memory_order_relaxed);
        if (file != nullptr) add(file, noted.line.load(std::memory_order_relaxed), piece->blocks_[i].capacity);
      }
    }
  }
  return all;
}

void depot::add(std::unique_ptr<carved_arena> item) noexcept {
  carved_arena& added = *item.release();
  total_bytes_ += added.bytes_;
  ++arenas_;
  added.number_ = ++numbers_;
  all_.push_front(added);
  idle_[added.whole_].push_front(added);
  if (!added.whole_) added.listed_ = by_room_.insert(std::move(added.unlisted_)).position;
}

std::unique_ptr<carved_arena> depot::remove(carved_arena& item) noexcept {
  assert(item.idle());
  for (const auto& piece : item.slabs_) {
    if (piece != nullptr) merge(*piece);
  }
  if (!item.whole_) item.unlisted_ = by_room_.extract(item.listed_);
  idle_[item.whole_].remove(item);
  all_.remove(item);
  total_bytes_ -= item.bytes_;
  --arenas_;
  return std::unique_ptr<carved_arena>(&item);
}

carved_arena* depot::find_idle(std::size_t keep) const noexcept {
  if (!idle_[1].empty()) return &idle_[1].front();
  for (carved_arena& item : idle_[0]) {
    if (keep-- == 0) return &item;
  }
  return nullptr;
}

}  // namespace weft::mr::detail
