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

/// The pool core's view of a task that waits for one buffer because none was at hand, or for several buffers, of which
/// it takes all or none. The base of allocate_waiter.
class allocate_request : public weft::detail::operation_base, public weft::detail::list_hook<allocate_request> {
 protected:
  allocate_request(std::size_t count, std::size_t bytes, budget which, std::source_location where) noexcept
      : count_(count), missing_(count), bytes_(bytes), budget_(which), where_(where) {}
  ~allocate_request() = default;

  block* block_ = nullptr;  // the first of the blocks that it has; while it waits, they may be taken back
  std::exception_ptr failure_;

 private:
  friend class allocation_queue;
  friend class pool_core;

  [[nodiscard]] bool gathers() const noexcept { return count_ != 1; }

  std::size_t count_;
  std::size_t missing_;  // blocks still missing, while it waits
  std::size_t bytes_;    // of each block
  budget budget_;
  std::source_location where_;

  // Under the core's mutex. queued: it waits; served: another thread has served it and sent it to its executor.
  enum class place : std::uint8_t { nowhere, queued, served };
  place place_ = place::nowhere;
  block_cache* cache_ = nullptr;  // the cache of the executor on which it waits
};

}  // namespace weft::mr::detail
