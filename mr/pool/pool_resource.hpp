// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/buffer.hpp>
#include <weft/mr/pool.hpp>
#include <weft/mr/slice.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <functional>
#include <map>
#include <memory_resource>
#include <optional>
#include <span>

namespace weft::mr {

/// Lets containers live in registered memory: `std::pmr::vector<int> numbers(&resource)`, and then an operation with
/// `resource.slice(std::as_writable_bytes(std::span(numbers)))`.
///
/// A container cannot wait: std::bad_alloc where the pool has no buffer at hand. Who can wait calls reserve() first. It
/// belongs to one executor, and is destroyed after its containers, and before the pool.
class pool_resource final : public std::pmr::memory_resource {
 public:
  /// Allocates from one of the pool's budgets.
  explicit pool_resource(pool& source, budget which = budget::send) noexcept : pool_(source), budget_(which) {}
  pool_resource(const pool_resource&) = delete;
  pool_resource& operator=(const pool_resource&) = delete;
  /// Ends the program if a container still has memory of it.
  ~pool_resource() override;

  /// Waits until there is memory for one allocation of so many bytes, and keeps it for the next that fits. Replaces
  /// what an earlier call has kept. The errors of pool::allocate().
  [[nodiscard]] task<> reserve(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t));

  /// For operations: a view of memory that came from here. Throws errc::out_of_range for any other.
  [[nodiscard]] mr::slice slice(std::span<std::byte> memory) const;

  /// How many allocations there are.
  [[nodiscard]] std::size_t allocations() const noexcept { return buffers_.size(); }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override;
  [[nodiscard]] bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  pool& pool_;
  budget budget_;
  std::optional<buffer> reserved_;
  std::map<std::byte*, buffer, std::less<>> buffers_;  // by what was given out
};

}  // namespace weft::mr
