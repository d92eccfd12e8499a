// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include "kit/standard.hpp"
#include "one_processor.hpp"
#include "world.hpp"

namespace weft::sim {

/// The executors of a run: the first on the thread that makes it, the others, of a simulation only, each on its own.
/// All of it by whoever has the turn.
class crew : private test::immovable {
 public:
  crew(world& place, const executor_options& first);
  ~crew();

  /// One more.
  void hire(bool shuffle_tasks);
  [[nodiscard]] std::size_t size() const noexcept { return 1 + others_.size(); }
  /// Counted from 0, and on from there again behind the last.
  [[nodiscard]] executor& operator[](std::size_t index) noexcept;

  /// Has the first do it.
  void run(task<> work) { first_.run(std::move(work)); }
  /// Then ends the others, if somebody needs them or not, and waits for their threads.
  void dismiss() noexcept;

  /// Needs one of them. When nobody does any more, an executor ends, but for the first: while the others go on.
  class use {
   public:
    use(crew& all, std::size_t index) noexcept;
    use(use&& other) noexcept : all_(std::exchange(other.all_, nullptr)), index_(other.index_) {}
    use& operator=(use&&) = delete;
    ~use();

   private:
    crew* all_;
    std::size_t index_;
  };

 private:
  class other;

  world& place_;
  executor first_;
  std::optional<one_processor> together_;  // once there are several
  std::vector<std::unique_ptr<other>> others_;
};

/// Has it done there, with a hop over and back where that is another executor.
template <class T>
task<T> on(executor& where, task<T> work) {
  if (where.on_own_thread()) co_return co_await std::move(work);
  co_return co_await run_on(where, std::move(work));
}

}  // namespace weft::sim
