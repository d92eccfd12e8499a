// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/iwarp/mpa.hpp>
#include <weft/net/iwarp/output_batch.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/net/software/key_table.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace weft::net::iwarp {

using software::domain;
using software::key_table;

/// Holds bytes from TCP until they make up whole FPDUs.
class staging {
 public:
  /// Room for two of the largest FPDUs. With more room, the first FPDU would have left the nearest caches before it is
  /// placed.
  static constexpr std::size_t capacity = 131'072;

  staging() : storage_(std::make_unique_for_overwrite<std::byte[]>(capacity)) {}

  [[nodiscard]] std::span<const std::byte> content() const noexcept { return {storage_.get() + begin_, end_ - begin_}; }
  [[nodiscard]] bool empty() const noexcept { return begin_ == end_; }

  /// The room for the next bytes; never empty if content() has been consumed as far as possible. May move the content.
  [[nodiscard]] std::span<std::byte> room() noexcept;
  void filled(std::size_t bytes) noexcept { end_ += bytes; }
  void consumed(std::size_t bytes) noexcept {
    begin_ += bytes;
    if (begin_ == end_) clear();
  }
  void clear() noexcept { begin_ = end_ = 0; }

 private:
  std::unique_ptr<std::byte[]> storage_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

inline std::span<std::byte> staging::room() noexcept {
  // The content that could not be consumed is less than one FPDU. It moves to the front if the largest FPDU would not
  // fit behind begin_, or if the area is filled to its end.
  if (capacity - begin_ < mpa::max_fpdu_bytes || end_ == capacity) {
    std::memmove(storage_.get(), storage_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return {storage_.get() + end_, capacity - end_};
}

/// What the iWARP connections of one executor and one domain share: large buffers, lent to connections while they need
/// them, and the executor's reader of the domain's key table.
class executor_state final : public weft::detail::attachment {
 public:
  /// The running executor's state for `home`; created at the first call. Throws std::bad_alloc.
  [[nodiscard]] static executor_state& of(const std::shared_ptr<domain>& home) {
    executor_core& running = *executor_core::current();
    if (auto* found = running.find_attachment(home.get())) return static_cast<executor_state&>(*found);
    return static_cast<executor_state&>(running.attach(home.get(), std::make_unique<executor_state>(home)));
  }

  explicit executor_state(std::shared_ptr<domain> home) : home_(std::move(home)), reader_(home_->keys()) {
    free_staging_.reserve(max_kept);
    free_batches_.reserve(max_kept);
  }

  [[nodiscard]] key_table::reader& keys() noexcept { return reader_; }

  /// Lends a staging area; null if memory is short.
  [[nodiscard]] std::unique_ptr<staging> lend_staging() noexcept { return lend(free_staging_); }
  void give_back(std::unique_ptr<staging> item) noexcept {
    item->clear();  // bytes that one connection has left must not reach the next one
    keep(free_staging_, std::move(item));
  }
  /// Lends an output batch; null if memory is short.
  [[nodiscard]] std::unique_ptr<output_batch> lend_batch() noexcept { return lend(free_batches_); }
  void give_back(std::unique_ptr<output_batch> item) noexcept { keep(free_batches_, std::move(item)); }

 private:
  // The most returned buffers of each kind that are kept. Further ones, which a burst needed, are freed.
  static constexpr std::size_t max_kept = 16;

  template <class Item>
  static std::unique_ptr<Item> lend(std::vector<std::unique_ptr<Item>>& free) noexcept {
    if (free.empty()) return make<Item>();
    auto item = std::move(free.back());
    free.pop_back();
    return item;
  }
  template <class Item>
  static std::unique_ptr<Item> make() noexcept try {
    return std::make_unique<Item>();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  template <class Item>
  static void keep(std::vector<std::unique_ptr<Item>>& free, std::unique_ptr<Item> item) noexcept {
    if (free.size() < max_kept) free.push_back(std::move(item));
  }

  std::shared_ptr<domain> home_;
  key_table::reader reader_;
  std::vector<std::unique_ptr<staging>> free_staging_;
  std::vector<std::unique_ptr<output_batch>> free_batches_;
};

}  // namespace weft::net::iwarp
