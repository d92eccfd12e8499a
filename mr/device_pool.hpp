// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device_memory.hpp>
#include <weft/mr/domain.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/slice.hpp>
#include <weft/mr/usage.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace weft::mr {

namespace detail {
class device_pool_core;
}

/// How to make a pool of device memory.
struct device_pool_options {
  std::size_t block_bytes = 0;        ///< the size of each block
  std::uint32_t blocks = 0;           ///< how many there are
  mr::usage usage = mr::usage::none;  ///< of all blocks: registration_options::usage
  bool direct = false;                ///< registration_options::direct
};
static_assert(std::is_trivially_destructible_v<device_pool_options>);

/// A block of a device_pool. Move-only. Its destructor returns the block to the pool, and must run on the pool's
/// executor, when no operation uses the block.
class device_block {
 public:
  device_block() noexcept = default;
  device_block(device_block&& other) noexcept
      : pool_(std::move(other.pool_)), number_(std::exchange(other.number_, 0)) {}
  device_block& operator=(device_block&& other) noexcept {
    device_block taken(std::move(other));
    std::swap(pool_, taken.pool_);
    std::swap(number_, taken.number_);
    return *this;
  }
  ~device_block();

  /// False if the block is empty: default-constructed or moved from.
  explicit operator bool() const noexcept { return pool_ != nullptr; }
  /// Its number in the pool: block_pair::local of a list over device_pool::region().
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  /// Its memory, for operations. errc::invalid_argument if the block is empty.
  [[nodiscard]] mr::slice slice() const;

 private:
  friend class device_pool;
  device_block(std::shared_ptr<detail::device_pool_core> pool, std::uint32_t number) noexcept
      : pool_(std::move(pool)), number_(number) {}

  std::shared_ptr<detail::device_pool_core> pool_;
  std::uint32_t number_ = 0;
};

/// Device memory in blocks of one size, registered once: the pages of a cache, say. The list of free blocks is in host
/// memory, because the processor must not touch the device's. Use a pool and its blocks on one executor only. The
/// memory stays until the pool and all of its blocks have been destroyed.
class device_pool {
 public:
  /// Allocates and registers the memory, on workers. Throws errc::invalid_argument if `device` is null,
  /// errc::zero_length without bytes or blocks, errc::out_of_range for more than can be addressed, and the errors of
  /// memory_device::allocate() and domain::register_memory().
  static task<device_pool> make(mr::domain& domain, std::shared_ptr<memory_device> device, device_pool_options options);

  /// Waits for a free block; waiters are served in order. A stop ends the wait (errc::canceled).
  task<device_block> allocate();
  /// Takes a free block without waiting: empty if there is none, or if a task waits for one.
  [[nodiscard]] std::optional<device_block> try_allocate();

  /// The region of all blocks, for lists of blocks and for region::remote().
  [[nodiscard]] const mr::region& region() const noexcept;
  /// The size of each block.
  [[nodiscard]] std::size_t block_bytes() const noexcept;
  /// The number of blocks.
  [[nodiscard]] std::uint32_t blocks() const noexcept;
  /// The number of free blocks, including blocks that waiting tasks are about to get.
  [[nodiscard]] std::uint32_t available() const noexcept;

 private:
  explicit device_pool(std::shared_ptr<detail::device_pool_core> core) noexcept : core_(std::move(core)) {}
  std::shared_ptr<detail::device_pool_core> core_;
};

}  // namespace weft::mr
