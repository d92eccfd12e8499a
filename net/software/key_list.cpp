// SPDX-License-Identifier: Apache-2.0
#include <weft/net/software/key_list.hpp>

#include <bit>
#include <new>

namespace weft::net::software {
namespace {

constexpr std::uint32_t reversed(std::uint32_t bits) noexcept {
  bits = (bits >> 1 & 0x55555555U) | (bits & 0x55555555U) << 1;
  bits = (bits >> 2 & 0x33333333U) | (bits & 0x33333333U) << 2;
  bits = (bits >> 4 & 0x0f0f0f0fU) | (bits & 0x0f0f0f0fU) << 4;
  return __builtin_bswap32(bits);
}

static_assert(reversed(1) == 0x80000000U && reversed(0x12345678U) == 0x1e6a2c48U);

// A bucket comes before the entries of the same hash.
std::uint64_t order_of(const key_list::node& item) noexcept {
  return std::uint64_t{reversed(item.hash)} << 1 | (item.stag != 0 ? 1U : 0U);
}

}  // namespace

key_list::key_list() {
  segments_[0] = std::make_unique<node[]>(segment_buckets);
  bucket(0).next.store(&end_);
  made_ = 1;
  while (made_ < first_buckets) static_cast<void>(make_bucket());
}

void key_list::link(node& item, node& behind) noexcept {
  const std::uint64_t order = order_of(item);
  node* before = &behind;
  node* next = before->next.load();
  while (next != &end_ && order_of(*next) < order) next = (before = next)->next.load();
  item.next.store(next);
  before->next.store(&item);
}

// The new bucket splits the bucket whose number is the same without the highest bit. False if there is no memory: that
// bucket then stays as it is.
bool key_list::make_bucket() noexcept {
  auto& segment = segments_[made_ / segment_buckets];
  if (segment == nullptr) segment.reset(new (std::nothrow) node[segment_buckets]);
  if (segment == nullptr) return false;
  node& made = bucket(made_);
  made.hash = static_cast<std::uint32_t>(made_);
  link(made, bucket(made_ - std::bit_floor(made_)));
  ++made_;
  return true;
}

// Keeps one to two buckets per entry, unless entries are few or very many, some were removed, or memory is short.
void key_list::insert(node& item) noexcept {
  item.hash = hash_of(item.stag);
  link(item, bucket(item.hash & mask_.load(std::memory_order_relaxed)));
  ++size_;
  const std::size_t now = buckets();
  if (now == most_buckets || 2 * size_ <= now) return;
  for (int i = 0; i < 2 && made_ < 2 * now; ++i) {
    if (!make_bucket()) return;
  }
  if (made_ == 2 * now) mask_.store(static_cast<std::uint32_t>(2 * now - 1), std::memory_order_release);
}

key_list::node* key_list::remove(std::uint32_t stag) noexcept {
  node* const item = find(stag);
  if (item == nullptr) return nullptr;
  node* before = &bucket(item->hash & mask_.load(std::memory_order_relaxed));
  while (before->next.load() != item) before = before->next.load();
  before->next.store(item->next.load());  // readers on the entry still find the next one
  --size_;
  return item;
}

}  // namespace weft::net::software
