// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool/budget.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/intrusive_list.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <source_location>

namespace weft::mr::detail {

struct block;
class block_cache;

/// What a pool's core knows of a task that waits for a buffer because there was none at hand, or for several, of which
/// it takes all or none. An allocate_waiter is one.
class allocate_request : public weft::detail::operation_base, public weft::detail::list_hook<allocate_request> {
 protected:
  allocate_request(std::size_t count, std::size_t bytes, budget which, std::source_location where) noexcept
      : count_(count), missing_(count), bytes_(bytes), budget_(which), where_(where) {}
  ~allocate_request() = default;

  block* block_ = nullptr;  // the first of those that it has; while it waits, others may take them back
  std::exception_ptr failure_;

 private:
  friend class pool_core;

  [[nodiscard]] bool gathers() const noexcept { return count_ != 1; }

  std::size_t count_;
  std::size_t missing_;  // of these, while it waits
  std::size_t bytes_;    // of each
  budget budget_;
  std::source_location where_;

  // Under the core's mutex: among those who wait, or those of one executor who are served and do not know it yet.
  enum class place : std::uint8_t { nowhere, queued, served };
  place place_ = place::nowhere;
  block_cache* cache_ = nullptr;  // of the executor on which it waits
};

}  // namespace weft::mr::detail
