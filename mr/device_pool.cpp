// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device_pool.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/sync/semaphore.hpp>

#include <fmt/core.h>

#include <limits>
#include <vector>

namespace weft::mr {

// The state that a pool shares with its blocks.
class detail::device_pool_core {
 public:
  device_pool_core(mr::region memory, const device_pool_options& options)
      : region(std::move(memory)), block_bytes(options.block_bytes), permits(options.blocks) {
    free.resize(options.blocks);
    for (std::uint32_t i = 0; i != options.blocks; ++i) free[i] = options.blocks - 1 - i;  // block 0 is taken first
  }

  [[nodiscard]] std::uint32_t take() noexcept {
    const std::uint32_t number = free.back();
    free.pop_back();
    return number;
  }
  void put(std::uint32_t number) noexcept {
    free.push_back(number);  // does not allocate: the vector had this size before
    permits.release();
  }

  const mr::region region;
  const std::size_t block_bytes;
  semaphore permits;
  std::vector<std::uint32_t> free;  // taken from the end
};

device_block::~device_block() {
  if (pool_ != nullptr) pool_->put(number_);
}

slice device_block::slice() const {
  if (pool_ == nullptr) throw error(errc::invalid_argument, "use a block of device memory that was moved from");
  return pool_->region.slice(number_ * pool_->block_bytes, pool_->block_bytes);
}

task<device_pool> device_pool::make(mr::domain& domain, std::shared_ptr<memory_device> device,
                                    device_pool_options options) {
  const std::string what = fmt::format("make a pool of {} blocks of {} bytes", options.blocks, options.block_bytes);
  if (device == nullptr) throw error(errc::invalid_argument, what + ": the device is null");
  if (options.blocks == 0 || options.block_bytes == 0) throw error(errc::zero_length, what);
  if (options.block_bytes > std::numeric_limits<std::size_t>::max() / options.blocks) {
    throw error(errc::out_of_range, what);
  }
  const std::size_t bytes = options.block_bytes * options.blocks;
  const auto allocate = [&device, bytes] { return device->allocate(bytes); };
  device_memory memory = co_await weft::detail::offload_for_resources(allocate);
  mr::region region = co_await domain.register_memory(
      std::move(memory), {.usage = options.usage, .device = device.get(), .direct = options.direct});
  co_return device_pool(std::make_shared<detail::device_pool_core>(std::move(region), options));
}

task<device_block> device_pool::allocate() {
  const std::shared_ptr<detail::device_pool_core> core = core_;
  co_await core->permits.acquire();
  co_return device_block(core, core->take());
}

std::optional<device_block> device_pool::try_allocate() {
  if (!core_->permits.try_acquire()) return std::nullopt;
  return device_block(core_, core_->take());
}

const region& device_pool::region() const noexcept { return core_->region; }
std::size_t device_pool::block_bytes() const noexcept { return core_->block_bytes; }
std::uint32_t device_pool::blocks() const noexcept {
  return static_cast<std::uint32_t>(core_->region.size() / core_->block_bytes);
}
std::uint32_t device_pool::available() const noexcept { return static_cast<std::uint32_t>(core_->free.size()); }

}  // namespace weft::mr
