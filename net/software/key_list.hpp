// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace weft::net::software {

/// Entries by STag, found in constant time however many there are.
///
/// Writers take turns under a mutex of the list's owner. Readers take no lock, even while the list grows. A removed
/// entry still leads its readers back into the list, so it must stay until they have left.
///
/// This is a split-ordered list (Shalev and Shavit, 2006): one list of all entries, and buckets that are nodes of the
/// list as well. The list is in the order of the reversed bits of each node's hash, so that a bucket is split by a
/// second bucket in its middle, and no entry ever moves. Each insertion makes at most two buckets, and readers use the
/// doubled number only once all are made; so no call takes long.
class key_list {
 public:
  /// The base of an entry. Constant while it is in the list, except for `next`.
  struct node {
    std::atomic<node*> next{nullptr};
    std::uint32_t stag = 0;  // 0: a bucket
    std::uint32_t hash = 0;  // of an entry: the low bits are its bucket's number; of a bucket: its own number
  };

  /// The most buckets that there can be; key_table::capacity is the same.
  static constexpr std::size_t most_buckets = std::size_t{1} << 20;

  key_list();
  key_list(const key_list&) = delete;
  key_list& operator=(const key_list&) = delete;

  /// The entry of an STag; null if there is none. For readers and writers.
  [[nodiscard]] node* find(std::uint32_t stag) const noexcept {
    if (stag == 0) return nullptr;
    const std::uint32_t hash = hash_of(stag);
    const std::uint32_t mask = mask_.load(std::memory_order_acquire);
    node* item = &bucket(hash & mask);
    do {
      item = item->next.load();
      if (item->stag == stag) return item;
    } while (item->stag != 0 || continues(*item, hash, mask));
    return nullptr;
  }

  /// Adds an entry, whose STag is not 0; the list must not have an entry with that STag.
  void insert(node& item) noexcept;
  /// Unlinks the entry of an STag; null if there is none.
  [[nodiscard]] node* remove(std::uint32_t stag) noexcept;
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t buckets() const noexcept { return std::size_t{mask_.load(std::memory_order_relaxed)} + 1; }

  /// Calls `dispose(node&)` for each entry. There must be no readers, and the list must not be used afterwards.
  template <class Dispose>
  void clear(Dispose dispose) noexcept {
    for (node* item = bucket(0).next.load(); item != &end_;) {
      node& each = *std::exchange(item, item->next.load());
      if (each.stag != 0) dispose(each);
    }
  }

 private:
  static constexpr std::size_t segment_buckets = 1024;
  static constexpr std::size_t first_buckets = 64;

  // Mixes all bits, because requested keys may differ only in their lowest bits, or only in their highest. No two keys
  // have the same hash.
  [[nodiscard]] static std::uint32_t hash_of(std::uint32_t stag) noexcept {
    return __builtin_bswap32(stag * 0x9E3779B1U);
  }
  [[nodiscard]] node& bucket(std::size_t number) const noexcept {
    return segments_[number / segment_buckets][number % segment_buckets];
  }
  // A reader's bucket continues behind a bucket that the mask, as the reader has loaded it, does not include yet.
  [[nodiscard]] bool continues(const node& of, std::uint32_t hash, std::uint32_t mask) const noexcept {
    return ((of.hash ^ hash) & mask) == 0 && &of != &end_;
  }
  void link(node& item, node& behind) noexcept;
  [[nodiscard]] bool make_bucket() noexcept;

  std::atomic<std::uint32_t> mask_{first_buckets - 1};  // the number of buckets that readers use, less one
  // Each segment is written before any mask that leads readers to it.
  std::array<std::unique_ptr<node[]>, most_buckets / segment_buckets> segments_;
  std::size_t made_ = 0;  // buckets, including those that readers do not use yet
  std::size_t size_ = 0;
  node end_;
};

}  // namespace weft::net::software
