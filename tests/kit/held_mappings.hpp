// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/system/system_calls.hpp>

#include <atomic>

namespace weft::test {

/// Memory that is mapped only when the test says so: meanwhile a pool is busy with making an arena.
class held_mappings final : public system_calls {
 public:
  void hold() noexcept { held_ = true; }
  void let_go() noexcept {
    held_ = false;
    held_.notify_all();
  }

  void* mmap(std::size_t length, int protection, int flags, int* failure) noexcept override {
    held_.wait(true);
    return system_calls::mmap(length, protection, flags, failure);
  }

 private:
  std::atomic<bool> held_{false};
};

}  // namespace weft::test
