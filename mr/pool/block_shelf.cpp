// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/pool/block.hpp>
#include <weft/mr/pool/block_shelf.hpp>
#include <weft/mr/pool/poison.hpp>

#include <algorithm>
#include <bit>

namespace weft::mr::detail {

constinit thread_local last_stacks last_used[2];

std::size_t batch_of(std::size_t block_bytes) noexcept {
  return std::clamp<std::size_t>((std::size_t{32} << 10) >> (std::bit_width(block_bytes) - 1), 1, 32);
}

block_shelf::block_shelf(const std::array<std::size_t, budgets>& limits) : limits_(limits) {
  const auto most = [](std::size_t index) { return 2 * batch_of(class_bytes(index % cached_classes)); };
  std::size_t places = 0;
  for (std::size_t index = 0; index < no_stack; ++index) places += 1 + most(index);
  places_.resize(places);
  block** next_place = places_.data();
  for (std::size_t index = 0; index < no_stack; ++index) {
    block_stack& item = stacks_[index];
    item.bottom_ = item.end_ = next_place + 1;  // the place below the bottom is always null
    item.top_.store(item.bottom_, std::memory_order_relaxed);
    next_place = item.bottom_ + most(index);
  }
}

// A build that marks memory when it is taken and freed never opens a shelf: the slow path does the marking.
void block_shelf::open(budget which, const executor_core& user) noexcept {
  if constexpr (marks_free_memory) return;
  for (std::size_t i = 0; i < cached_classes; ++i) (&first(which))[i].user_.store(&user, std::memory_order_relaxed);
}

void block_shelf::close(budget which) noexcept {
  for (std::size_t i = 0; i < cached_classes; ++i) {
    block_stack& item = (&first(which))[i];
    item.user_.store(&item, std::memory_order_relaxed);
  }
}

block* block_shelf::pop(std::size_t index) noexcept {
  block_stack& from = stacks_[index];
  block** const top = from.top_.load(std::memory_order_relaxed);
  block* const item = top[-1];
  if (item != nullptr) from.top_.store(top - 1, std::memory_order_relaxed);
  return item;
}

bool block_shelf::push(std::size_t index, block& item) noexcept {
  block_stack& to = stacks_[index];
  block** const top = to.top_.load(std::memory_order_relaxed);
  if (top == to.end_ && !make_room(index)) return false;
  *top = &item;
  to.top_.store(top + 1, std::memory_order_relaxed);
  item.stack = &to;
  return true;
}

// Makes room for another batch, up to the limit; stacks that do not use their room give it up.
bool block_shelf::make_room(std::size_t index) noexcept {
  block_stack& of = stacks_[index];
  const std::size_t tag = index / cached_classes;
  const std::size_t bytes = class_bytes(index % cached_classes);
  const std::size_t batch = batch_of(bytes);
  const auto now = static_cast<std::size_t>(of.end_ - of.bottom_);
  std::size_t more = std::min(batch, 2 * batch - now);
  if (more * bytes > limits_[tag] - room_[tag]) reclaim(all_budgets[tag]);
  more = std::min(more, (limits_[tag] - room_[tag]) / bytes);
  of.end_ += more;
  room_[tag] += more * bytes;
  return more != 0;
}

void block_shelf::reclaim(budget which) noexcept {
  for (std::size_t i = 0; i < cached_classes; ++i) {
    block_stack& item = (&first(which))[i];
    block** const top = item.top_.load(std::memory_order_relaxed);
    room_[index_of(which)] -= static_cast<std::size_t>(item.end_ - top) * class_bytes(i);
    item.end_ = top;
  }
}

std::size_t block_shelf::count(std::size_t index) const noexcept {
  const block_stack& of = stacks_[index];
  return static_cast<std::size_t>(of.top_.load(std::memory_order_relaxed) - of.bottom_);
}

std::size_t block_shelf::bytes(budget which) const noexcept {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < cached_classes; ++i) sum += count(stack_of(which, i)) * class_bytes(i);
  return sum;
}

}  // namespace weft::mr::detail
