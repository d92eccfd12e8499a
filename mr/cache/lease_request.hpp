// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/usage.hpp>
#include <weft/runtime/core/remote_waiter.hpp>
#include <weft/runtime/error.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

namespace weft::mr::detail {

class cache_entry;
class cache_flight;

/// The cache core's view of a task that asks for a lease: the range, and the result. The base of lease_operation.
class lease_request : public weft::detail::remote_waiter {
 protected:
  lease_request(std::span<std::byte> memory, mr::usage purpose) noexcept : memory_(memory), usage_(purpose) {}
  lease_request(lease_request&& other) noexcept
      : remote_waiter(std::move(other)), memory_(other.memory_), usage_(other.usage_) {}
  ~lease_request() = default;

  std::span<std::byte> memory_;
  mr::usage usage_;
  cache_entry* entry_ = nullptr;  // held
  std::optional<error> failure_;

 private:
  friend class cache_core;

  cache_flight* flight_ = nullptr;  // the registration that it waits for; under the core's mutex
};

}  // namespace weft::mr::detail
