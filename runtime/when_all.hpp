// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/scope.hpp>

#include <optional>
#include <tuple>
#include <vector>

namespace weft {

namespace detail {

/// What when_all yields for a task<void>.
struct nothing {};

template <class T>
using value_or_nothing = std::conditional_t<std::is_void_v<T>, nothing, T>;

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
void spawn_keeping(scope& children, task<T>& source, std::optional<value_or_nothing<T>>& value) {
  const std::source_location origin = source.origin();
  children.spawn_as(origin, keep_value(std::move(source), value));
}

}  // namespace detail

/// Runs the tasks side by side and yields all results as a tuple (an empty struct for a task<void>).
/// If one fails, the others are stopped and awaited, and then the first failure is rethrown.
template <class... T>
task<std::tuple<detail::value_or_nothing<T>...>> when_all(task<T>... tasks) {
  std::tuple<std::optional<detail::value_or_nothing<T>>...> values;
  const auto spawn_all = [&](scope& children) -> task<> {
    std::apply([&](auto&... value) { (detail::spawn_keeping(children, tasks, value), ...); }, values);
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, spawn_all);
  co_return std::apply([](auto&... value) { return std::tuple<detail::value_or_nothing<T>...>(std::move(*value)...); },
                       values);
}

/// The same for any number of tasks of one type; the results stand in the order of the tasks.
template <class T>
task<std::vector<T>> when_all(std::vector<task<T>> tasks) {
  std::vector<std::optional<T>> values(tasks.size());
  const auto spawn_all = [&](scope& children) -> task<> {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      detail::spawn_keeping(children, tasks[i], values[i]);
    }
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, spawn_all);
  std::vector<T> results;
  results.reserve(values.size());
  for (auto& value : values) results.push_back(std::move(*value));
  co_return results;
}

/// The same for tasks that yield nothing.
inline task<> when_all(std::vector<task<>> tasks) {
  const auto spawn_all = [&](scope& children) -> task<> {
    for (task<>& item : tasks) children.spawn(std::move(item));
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, spawn_all);
}

}  // namespace weft
