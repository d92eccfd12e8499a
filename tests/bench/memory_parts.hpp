// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>
#include <weft/runtime/executor.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include "kit/address_space.hpp"

namespace weft::bench {

/// A domain whose device is the processor. What a real one does to memory, touching and pinning every page of it, it
/// does too, by mlock(2), if it is told to.
class plain_domain final : public mr::domain {
 public:
  explicit plain_domain(bool pins = false)
      : mr::domain("plain", {.usages = mr::known_usages, .pins = pins}), locks_(pins) {}

 private:
  mr::registration do_register(std::span<std::byte> memory, const mr::registration_options&) override {
    if (locks_ && ::mlock(memory.data(), memory.size()) != 0) throw system_error(errno, "mlock");
    return {.local_key = 1, .address = reinterpret_cast<std::uintptr_t>(memory.data()), .handle = memory.data()};
  }
  void do_deregister(mr::registration&) noexcept override {}
  bool locks_;
};

inline executor_options sleeping() {
  executor_options options{.policy = poll_policy::sleep};
  return options;
}

template <class Body>
void run(Body&& body, const executor_options& options = sleeping()) {
  executor home(options);
  home.run(body());
}

}  // namespace weft::bench
