// SPDX-License-Identifier: Apache-2.0
#include <kv/clock.hpp>

namespace kv {

moment server_now() noexcept {
  using namespace std::chrono;
  struct beginning {
    system_clock::time_point wall = system_clock::now();
    steady_clock::time_point steady = steady_clock::now();
  };
  static const beginning first;
  const auto passed = duration_cast<system_clock::duration>(steady_clock::now() - first.steady);
  return static_cast<moment>(duration_cast<milliseconds>((first.wall + passed).time_since_epoch()).count());
}

}  // namespace kv
