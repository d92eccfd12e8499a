// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/pool/allocate_request.hpp>

#include <cstddef>
#include <source_location>
#include <string>

namespace weft::mr::detail {

class pool_core;

/// An operation that waits for blocks of a pool's core.
class allocate_waiter final : public allocate_request {
 public:
  allocate_waiter(pool_core& source, std::size_t count, std::size_t bytes, budget which,
                  std::source_location where) noexcept
      : allocate_request(count, bytes, which, where), core_(&source) {}
  ~allocate_waiter() {
    if (waiting()) leave();
  }

  /// Returns the first of the blocks that it was served with, each linked to the next. Throws if there are none.
  [[nodiscard]] block& take();
  /// Yields the first of the blocks to a task that awaits the waiter itself.
  [[nodiscard]] block* await_resume() { return &take(); }
  [[nodiscard]] std::string describe() const override { return "memory of a pool"; }

 private:
  void begin() override;
  void cancel() noexcept override;
  void leave() noexcept;

  pool_core* core_;
};

}  // namespace weft::mr::detail
