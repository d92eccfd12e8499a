// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/result.hpp>
#include <weft/runtime/scope.hpp>

#include <tuple>
#include <vector>

namespace weft {

namespace detail {

/// The value that when_all() yields for a task<void>.
struct nothing {};

template <class T>
using value_or_nothing = std::conditional_t<std::is_void_v<T>, nothing, T>;

template <class T>
value_or_nothing<T> take_value(spawned<T>& ended) {
  if constexpr (std::is_void_v<T>) {
    return nothing();
  } else {
    return ended.take();
  }
}

template <class T>
result<T> take_result(spawned<T>& ended) {
  try {
    if constexpr (std::is_void_v<T>) {
      ended.take();
      return {};
    } else {
      return ended.take();
    }
  } catch (const error& failure) {
    return failure;
  }
}

template <class... T>
task<std::tuple<value_or_nothing<T>...>> run_all(task<T>... tasks) {
  std::tuple<spawned<T>...> handles;
  const auto spawn_all = [&](scope& children) -> task<> {
    std::apply([&](auto&... handle) { ((handle = children.spawn(std::move(tasks))), ...); }, handles);
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, spawn_all);
  const auto take = [](auto&... handle) { return std::tuple<value_or_nothing<T>...>(take_value(handle)...); };
  co_return std::apply(take, handles);
}

template <class... T>
task<std::tuple<result<T>...>> run_all_results(task<T>... tasks) {
  std::tuple<spawned<T>...> handles;
  const auto spawn_all = [&](scope& children) -> task<> {
    std::apply([&](auto&... handle) { ((handle = children.spawn(std::move(tasks))), ...); }, handles);
    co_return;
  };
  try {
    co_await with_scope(on_failure::stop_siblings, spawn_all);
  } catch (const error&) {  // the handles keep the failure
  }
  const auto take = [](auto&... handle) { return std::tuple<result<T>...>(take_result(handle)...); };
  co_return std::apply(take, handles);
}

}  // namespace detail

/// Runs tasks and operations side by side and yields all results as a tuple (with an empty struct for each that yields
/// nothing). If one of them fails, the others are stopped and awaited, and then the first failure is rethrown. Values
/// that the others had yielded by then are dropped; when_all_results() keeps them.
///
///     auto both = co_await when_all(peer.recv(), device.pool().allocate(4096));
///
/// An operation that is given as an lvalue is awaited in place, and must outlive the call; a task is moved.
template <detail::is_awaitable... Operation>
auto when_all(Operation&&... operations) {
  return detail::run_all(detail::as_task(std::forward<Operation>(operations))...);
}

/// when_all() for any number of tasks of one type; the results are in the order of the tasks.
template <class T>
task<std::vector<T>> when_all(std::vector<task<T>> tasks) {
  std::vector<spawned<T>> handles;
  handles.reserve(tasks.size());
  const auto spawn_all = [&](scope& children) -> task<> {
    for (task<T>& item : tasks) handles.push_back(children.spawn(std::move(item)));
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, spawn_all);
  std::vector<T> results;
  results.reserve(handles.size());
  for (spawned<T>& each : handles) results.push_back(each.take());
  co_return results;
}

/// when_all() for tasks that yield nothing.
inline task<> when_all(std::vector<task<>> tasks) {
  const auto spawn_all = [&](scope& children) -> task<> {
    for (task<>& item : tasks) children.spawn(std::move(item));
    co_return;
  };
  co_await with_scope(on_failure::stop_siblings, spawn_all);
}

/// when_all() for operations of one type.
template <detail::is_awaitable Operation>
  requires(!detail::is_task<Operation>)
auto when_all(std::vector<Operation> operations) {
  return when_all(detail::as_tasks(std::move(operations)));
}

/// Like when_all(), but yields a weft::result for each task or operation, its value or its failure, instead of
/// throwing. So no value that others had received is lost when one fails or the caller is stopped. The first failure
/// stops the others here as well. Exceptions other than weft::error are thrown, and then all values are lost.
///
///     auto [heard, taken] = co_await when_all_results(peer.recv(), jobs.receive());
template <detail::is_awaitable... Operation>
auto when_all_results(Operation&&... operations) {
  return detail::run_all_results(detail::as_task(std::forward<Operation>(operations))...);
}

}  // namespace weft
