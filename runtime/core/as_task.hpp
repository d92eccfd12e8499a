// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/awaitable.hpp>
#include <weft/runtime/task.hpp>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::detail {

template <class T>
inline constexpr bool is_task = false;
template <class T>
inline constexpr bool is_task<task<T>> = true;

/// Awaits an operation that it keeps in its frame.
template <class Operation>
task<std::decay_t<await_result<Operation>>> await_kept(Operation operation) {
  if constexpr (std::is_void_v<await_result<Operation>>) {
    co_await std::move(operation);
  } else {
    co_return co_await std::move(operation);
  }
}

/// Awaits an operation in place. Takes a pointer, because GCC 12 copies the object that a reference parameter refers
/// to.
template <class Operation>
task<std::decay_t<await_result<Operation&>>> await_in_place(Operation* operation) {
  if constexpr (std::is_void_v<await_result<Operation&>>) {
    co_await *operation;
  } else {
    co_return co_await *operation;
  }
}

/// Makes a task of anything that can be awaited; a task stays as it is.
template <class T>
task<T> as_task(task<T>&& given) noexcept {
  return std::move(given);
}
template <is_awaitable Operation>
  requires(!is_task<std::remove_cvref_t<Operation>>)
auto as_task(Operation&& operation) {
  if constexpr (std::is_lvalue_reference_v<Operation>) {
    return await_in_place(std::addressof(operation));
  } else {
    return await_kept<Operation>(std::forward<Operation>(operation));
  }
}

/// The type that the task of as_task() yields for an operation.
template <class Operation>
using task_value = typename decltype(as_task(std::declval<Operation>()))::value_type;

template <class Operation>
std::vector<task<task_value<Operation>>> as_tasks(std::vector<Operation>&& operations) {
  std::vector<task<task_value<Operation>>> tasks;
  tasks.reserve(operations.size());
  for (Operation& each : operations) tasks.push_back(as_task(std::move(each)));
  return tasks;
}

/// A function that makes a task when it is called with these arguments.
template <class Function, class... Arguments>
concept makes_task =
    std::is_invocable_v<Function, Arguments...> && is_task<std::invoke_result_t<Function, Arguments...>>;

/// Awaits the task that `function(arguments...)` makes. Keeps the function and the arguments until the task ends,
/// because the task's coroutine refers to its lambda's closure, and to arguments that it takes by reference.
template <class Function, class... Arguments>
std::invoke_result_t<Function&, Arguments...> await_call(Function function, Arguments... arguments) {
  using value = typename std::invoke_result_t<Function&, Arguments...>::value_type;
  if constexpr (std::is_void_v<value>) {
    co_await std::invoke(function, std::move(arguments)...);
  } else {
    co_return co_await std::invoke(function, std::move(arguments)...);
  }
}

}  // namespace weft::detail
