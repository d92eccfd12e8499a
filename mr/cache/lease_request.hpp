// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/usage.hpp>
#include <weft/runtime/core/remote_waiter.hpp>
#include <weft/runtime/error.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace weft::mr {
class memory_device;
}

namespace weft::mr::detail {

class cache_entry;
class cache_flight;

/// The cache core's view of a task that asks for a lease: the range, and the result. The base of lease_operation.
class lease_request : public weft::detail::remote_waiter {
 protected:
  lease_request(std::span<std::byte> memory, mr::usage purpose, memory_device* device) noexcept
      : memory_(memory), usage_(purpose), device_(device) {}
  lease_request(lease_request&& other) noexcept
      : remote_waiter(std::move(other)), memory_(other.memory_), usage_(other.usage_), device_(other.device_) {}
  ~lease_request() = default;

  std::span<std::byte> memory_;
  mr::usage usage_;
  memory_device* device_;         // whose memory it is; null: host memory
  std::uint64_t allocation_ = 0;  // device_allocation::id of the memory; 0: host memory
  cache_entry* entry_ = nullptr;  // the registration that serves the request; the request is one of its holders
  std::optional<error> failure_;

 private:
  friend class cache_core;
  friend class cache_entry;

  cache_flight* flight_ = nullptr;  // the registration in progress that it waits for; under the core's mutex
};

}  // namespace weft::mr::detail
