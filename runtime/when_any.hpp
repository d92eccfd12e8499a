// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/when_all.hpp>

#include <cstddef>
#include <exception>
#include <new>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace weft {

/// The outcome of when_any().
template <class Values>
struct when_any_result {
  /// The index of the argument that ended first, or if that failed, of the first other that yielded a value.
  std::size_t index;
  /// In the order of the arguments: the value of the one that ended first, and the values of others that completed
  /// before the stop reached them, so that nothing received is lost. Empty for the rest.
  Values values;
  /// The failure of the argument that ended first, if others yielded values; else null.
  std::exception_ptr failure;
};

namespace detail {

class race {
 public:
  explicit race(scope& racers) noexcept : racers_(racers) {}

  /// Notes that a racer has ended without failure. After the failure of another, it counts only if it has yielded a
  /// value, which would be lost otherwise.
  void yielded(std::size_t index, bool is_value) noexcept {
    if (!first_ && (!failure_ || is_value)) first_ = index;
    racers_.request_stop();
  }
  void failed(std::exception_ptr failure) noexcept {
    if (!first_ && !failure_) failure_ = std::move(failure);
    racers_.request_stop();
  }
  template <class Values>
  void decide(when_any_result<Values>& outcome) const {
    if (!first_) std::rethrow_exception(failure_);
    outcome.index = *first_;
    outcome.failure = failure_;
  }

 private:
  scope& racers_;
  std::optional<std::size_t> first_;
  std::exception_ptr failure_;
};

template <class T>
task<> keep_value(task<T> source, std::optional<value_or_nothing<T>>& value) {
  if constexpr (std::is_void_v<T>) {
    co_await std::move(source);
    value.emplace();
  } else {
    value.emplace(co_await std::move(source));
  }
}

template <class T>
task<> run_racer(task<T> source, std::optional<value_or_nothing<T>>& value, std::optional<race>& all,
                 std::size_t index) {
  try {
    co_await keep_value(std::move(source), value);
    all->yielded(index, !std::is_void_v<T>);
  } catch (...) {
    all->failed(std::current_exception());
  }
}

template <class T>
void spawn_racer(scope& racers, task<T>& source, std::optional<value_or_nothing<T>>& value, std::optional<race>& all,
                 std::size_t index) {
  const std::source_location origin = source.origin();
  racers.spawn_as(origin, run_racer(std::move(source), value, all, index));
}

template <class... T>
  requires(sizeof...(T) > 0)
task<when_any_result<std::tuple<std::optional<value_or_nothing<T>>...>>> run_any(task<T>... tasks) {
  when_any_result<std::tuple<std::optional<value_or_nothing<T>>...>> outcome{};
  std::optional<race> all;
  const auto spawn_all = [&](scope& racers) -> task<> {
    all.emplace(racers);
    std::size_t index = 0;
    const auto spawn = [&](auto&... value) { (spawn_racer(racers, tasks, value, all, index++), ...); };
    try {
      std::apply(spawn, outcome.values);
    } catch (const std::bad_alloc&) {  // not thrown, because tasks that were spawned already may yield values
      all->failed(std::current_exception());
    }
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, spawn_all);
  all->decide(outcome);
  co_return std::move(outcome);
}

}  // namespace detail

/// Runs tasks and operations side by side until one ends; then the others are stopped *and awaited*, so that none of
/// them goes on. Yields the value of the first to end (an empty struct if that yields nothing), or throws its failure;
/// failures of the others are dropped. If others have yielded values, which would be lost, the failure is not thrown:
/// when_any_result::failure has it beside the values.
///
///     auto first = co_await when_any(peer.recv(), shut_down.wait(), sleep_for(30s));
///
/// An operation that is given as an lvalue is awaited in place, and must outlive the call; a task is moved. as_result()
/// around each operation yields the failures of all.
template <detail::is_awaitable... Operation>
  requires(sizeof...(Operation) > 0)
auto when_any(Operation&&... operations) {
  return detail::run_any(detail::as_task(std::forward<Operation>(operations))...);
}

/// when_any() for any number of tasks of one type; errc::invalid_argument for none.
template <class T>
task<when_any_result<std::vector<std::optional<detail::value_or_nothing<T>>>>> when_any(std::vector<task<T>> tasks) {
  if (tasks.empty()) throw error(errc::invalid_argument, "when_any needs at least one task");
  when_any_result<std::vector<std::optional<detail::value_or_nothing<T>>>> outcome{};
  outcome.values.resize(tasks.size());
  std::optional<detail::race> all;
  const auto spawn_all = [&](scope& racers) -> task<> {
    all.emplace(racers);
    try {
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        detail::spawn_racer(racers, tasks[i], outcome.values[i], all, i);
      }
    } catch (const std::bad_alloc&) {  // not thrown, because tasks that were spawned already may yield values
      all->failed(std::current_exception());
    }
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, spawn_all);
  all->decide(outcome);
  co_return std::move(outcome);
}

/// when_any() for any number of operations of one type; errc::invalid_argument for none.
template <detail::is_awaitable Operation>
  requires(!detail::is_task<Operation>)
auto when_any(std::vector<Operation> operations) {
  return when_any(detail::as_tasks(std::move(operations)));
}

}  // namespace weft
