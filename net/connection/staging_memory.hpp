// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/device_memory.hpp>
#include <weft/mr/domain.hpp>
#include <weft/mr/region.hpp>
#include <weft/mr/system/mapping.hpp>
#include <weft/runtime/sync/mutex.hpp>
#include <weft/runtime/task.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace weft::net {

/// Host memory through which device memory is copied: registered with the fabrics, and pinned for each memory_device
/// that copies. It is unpinned and released on a worker, once nobody uses it.
class staging_memory {
 public:
  staging_memory() noexcept = default;

  /// Makes `bytes` of such memory, registered for `purpose`. Throws weft::error.
  static task<staging_memory> make(mr::domain& domain, std::size_t bytes, mr::usage purpose);
  /// Pins the memory for the device, unless it is pinned already. Throws weft::error.
  task<> pin_for(std::shared_ptr<mr::memory_device> device);

  explicit operator bool() const noexcept { return static_cast<bool>(region_); }
  [[nodiscard]] mr::slice slice(std::size_t offset, std::size_t length) const { return region_.slice(offset, length); }
  [[nodiscard]] mr::slice slice() const { return region_.slice(); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return region_.bytes(); }

 private:
  // Owns the memory behind the region. The region destroys this object after it has deregistered the memory.
  class pages {
   public:
    explicit pages(mr::mapping memory) noexcept : memory_(std::move(memory)) {}
    pages(pages&&) noexcept = default;
    pages& operator=(pages&&) = delete;
    ~pages() {
      for (const auto& each : pinned_for_) each->unpin(bytes());
    }
    [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }
    [[nodiscard]] std::size_t size() const noexcept { return memory_.size(); }
    [[nodiscard]] std::byte* begin() const noexcept { return data(); }
    [[nodiscard]] std::byte* end() const noexcept { return data() + size(); }
    [[nodiscard]] const mr::backing_file& file() const noexcept { return memory_.file(); }
    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {data(), size()}; }
    /// Pins the memory for the device, unless somebody else has. Call it on a worker, because pinning may block.
    void pin_for(const std::shared_ptr<mr::memory_device>& device);

   private:
    mr::mapping memory_;
    std::vector<std::shared_ptr<mr::memory_device>> pinned_for_;
  };

  staging_memory(mr::region region, pages& memory)
      : region_(std::move(region)), pages_(&memory), pinning_(std::make_unique<mutex>()) {}

  [[nodiscard]] bool is_known_to(const mr::memory_device& device) const noexcept;

  mr::region region_;
  pages* pages_ = nullptr;  // owned by region_
  std::unique_ptr<mutex> pinning_;
  std::vector<std::shared_ptr<mr::memory_device>> known_to_;  // the memory is pinned for these, by us or by others
};

}  // namespace weft::net
