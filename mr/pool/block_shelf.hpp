// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool/block_stack.hpp>
#include <weft/mr/pool/depot.hpp>
#include <weft/mr/pool/size_class.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace weft::mr::detail {

/// The number of blocks that move between a shelf and the depot at once, to make the lock cheap: about 32 KiB in all,
/// but at least 1 block and at most 32.
[[nodiscard]] std::size_t batch_of(std::size_t block_bytes) noexcept;

/// The stacks of free blocks that one executor caches, for both budgets. One executor after another may use a shelf; it
/// lives as long as the core, because blocks in use point to its stacks.
///
/// Its functions are for its user's thread alone, unless they say otherwise.
class block_shelf {
 public:
  /// `limits`: in bytes, for each budget.
  explicit block_shelf(const std::array<std::size_t, budgets>& limits);
  block_shelf(const block_shelf&) = delete;
  block_shelf& operator=(const block_shelf&) = delete;

  /// Lets `user` take and give blocks of a budget without the core. Under the core's mutex.
  void open(budget which, const executor_core& user) noexcept;
  /// Undoes open(). Under the core's mutex.
  void close(budget which) noexcept;

  /// The first stack of a budget; its other stacks follow, in order of their size classes.
  [[nodiscard]] block_stack& first(budget which) noexcept { return stacks_[stack_of(which, 0)]; }
  [[nodiscard]] block_stack& operator[](std::size_t index) noexcept { return stacks_[index]; }
  /// Takes a block from a stack; null if it is empty.
  [[nodiscard]] block* pop(std::size_t index) noexcept;
  /// Puts a block on a stack. False if it is full, and no room can be made.
  [[nodiscard]] bool push(std::size_t index, block& item) noexcept;
  [[nodiscard]] std::size_t count(std::size_t index) const noexcept;
  /// The bytes of a budget that it holds. From any thread.
  [[nodiscard]] std::size_t bytes(budget which) const noexcept;

  std::unique_ptr<block_shelf> next;  // in the list of unused shelves

 private:
  [[nodiscard]] bool make_room(std::size_t index) noexcept;
  void reclaim(budget which) noexcept;

  std::array<block_stack, no_stack> stacks_;
  const std::array<std::size_t, budgets> limits_;
  // The bytes that all stacks of a budget have room for. The limit is on this room, as if it were full, so that taking
  // and giving need not count.
  std::array<std::size_t, budgets> room_{};
  std::vector<block*> places_;
};

}  // namespace weft::mr::detail
