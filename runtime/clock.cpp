// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/clock.hpp>

namespace weft {
namespace {

class steady_clock final : public clock {
 public:
  time_point now() noexcept override { return std::chrono::steady_clock::now(); }
};

constinit steady_clock instance;

}  // namespace

clock& clock::steady() noexcept { return instance; }

}  // namespace weft
