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
  bool pin = false;         ///< pin each thread to one processor; threads share processors only if there are too few
  executor_options each{};  ///< the options of each executor
};
static_assert(std::is_trivially_destructible_v<executor_group_options>);

/// Executors that run, each on a thread of its own, for as long as the group lives. Work reaches them through run_on(),
/// executor::post() and channels.
///
///     executor_group group;
///     executor here;
///     here.run(serve(group));      // co_await run_on(group[i], ...)
///
/// The destructor waits until all tasks on the executors have ended, and no function that one executor has posted to
/// another is left; then it destroys the executors. Do not call it on one of their threads. In a child of fork(2),
/// which does not have these threads, it waits for nothing and leaves the executors as they are.
class executor_group {
 public:
  /// Returns once all executors run. Throws weft::error if an executor cannot be made, a thread cannot be started or
  /// pinned, or an executor cannot use its event driver; executors that had started have ended by then.
  explicit executor_group(executor_group_options options = {});
  executor_group(const executor_group&) = delete;
  executor_group& operator=(const executor_group&) = delete;
  ~executor_group();

  /// How many executors it has.
  [[nodiscard]] std::size_t size() const noexcept { return members_.size(); }
  /// The executor with this index; errc::out_of_range if there is none.
  [[nodiscard]] executor& operator[](std::size_t index) const;

 private:
  class member;
  std::vector<std::unique_ptr<member>> members_;
};

}  // namespace weft
