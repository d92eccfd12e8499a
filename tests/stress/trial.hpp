// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "run.hpp"

namespace weft::stress {

/// What many seeds have come to.
struct tally {
  std::uint64_t seeds = 0;  ///< of a script whose calls fail in turn: runs in which one has
  std::uint64_t events = 0;
  std::uint64_t operations = 0;  ///< that have ended, in whatever way
  std::uint64_t failures = 0;    ///< of these: that had a reason to fail
  std::uint64_t stopped = 0;     ///< of these: that the program has stopped
  std::uint64_t faults = 0;      ///< that have come to pass
  std::chrono::nanoseconds virtual_time{};
};

/// How a child process ended that played scripts.
struct verdict {
  bool failed = false;
  std::uint64_t seed = 0;  ///< that it was at
  std::string why{};       ///< in words: what the check says, or what the process died of
};

/// What a seed stands for there.
[[nodiscard]] sim::script make_script(std::uint64_t seed, const sim::setting& where);
/// The same of a small one, of which every call can be tried.
[[nodiscard]] sim::script make_small_script(std::uint64_t seed, const sim::setting& where);

/// Plays the scripts of `count` seeds in a process of its own, until one fails: whatever becomes of that, a signal or a
/// violated assertion, is an outcome. A seed that takes longer than `limit` has failed as well.
[[nodiscard]] verdict try_seeds(std::uint64_t first, std::uint64_t count, std::chrono::seconds limit, tally& sum,
                                const sim::setting& where = {});

/// Plays a script again and again, with another call of the system failing each time, until all have. In `what` is then
/// the call that it failed with.
[[nodiscard]] verdict try_each_call(sim::script& what, std::chrono::seconds limit, tally& sum,
                                    const sim::setting& where = {});

/// The same for one script.
[[nodiscard]] verdict try_script(const sim::script& what, std::chrono::seconds limit, const sim::setting& where = {});

}  // namespace weft::stress
