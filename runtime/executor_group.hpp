// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/executor.hpp>

#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

namespace weft {

/// How many executors a group has, and how they are made.
struct executor_group_options {
  std::size_t size = 0;     ///< how many executors; 0: one for each processor that this process may use
  bool pin = false;         ///< keep each on a processor of its own, as far as they go round
  executor_options each{};  ///< how to make each of them
};
static_assert(std::is_trivially_destructible_v<executor_group_options>);

/// Executors that run, each on a thread of its own, for as long as the group lives. Work gets there by run_on(),
/// executor::post() and channels.
///
///     executor_group group;
///     executor here;
///     here.run(serve(group));      // co_await run_on(group[i], ...)
///
/// The destructor waits until all that runs there has ended, and until no function that one of them has posted to
/// another is left; then it destroys them. It is not called from there. In a child of fork(2), where
/// its threads do not run, it waits for nothing, and leaves the executors as they are.
class executor_group {
 public:
  /// Returns once all executors run. Throws weft::error if an executor cannot be made, a thread cannot be started or
  /// pinned, or an executor cannot use its event driver; executors that ran have ended then.
  explicit executor_group(executor_group_options options = {});
  executor_group(const executor_group&) = delete;
  executor_group& operator=(const executor_group&) = delete;
  ~executor_group();

  /// How many executors it has.
  [[nodiscard]] std::size_t size() const noexcept { return members_.size(); }
  /// errc::out_of_range beyond size().
  [[nodiscard]] executor& operator[](std::size_t index) const;

 private:
  class member;
  std::vector<std::unique_ptr<member>> members_;
};

}  // namespace weft
