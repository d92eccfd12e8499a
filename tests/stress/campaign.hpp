// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "duel.hpp"
#include "report.hpp"

namespace weft::stress {

struct campaign_options {
  double minutes = 10;
  std::uint64_t first = 0;           ///< seed
  std::uint64_t limit_seconds = 60;  ///< for one of them
  std::uint64_t most_failures = 5;   ///< it ends after so many
  bool simulates = true;             ///< play on the simulated fabrics as well
  bool fights = true;                ///< with two processes
  /// Hours of few duels instead of a little of everything, and a report every minute.
  bool soaks = false;
  battleground where{};                                                   ///< the real device
  std::vector<std::string> duels;                                         ///< by name; empty: all
  std::function<void(const report& so_far)> save = [](const report&) {};  ///< every minute
};

/// Shares the time between all there is, a second at least for each, and shows how far it has come. WEFT_EVENT_DRIVER
/// says which driver, if not both. SIGINT ends it early: the report is of what was done until then.
[[nodiscard]] report run_campaign(const campaign_options& chosen);

}  // namespace weft::stress
