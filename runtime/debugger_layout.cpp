// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/executor_list.hpp>
#include <weft/runtime/core/operation.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/scope.hpp>

#include <cstddef>
#include <cstdint>

namespace weft::detail {

// Debuggers read memory by these offsets, because a release build has no type information (runtime/gdb/weft-gdb.py).
// GCC and clang allow offsetof for these types, although they are not of standard layout, because none has a virtual
// base.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
struct debugger_layout {
  static constexpr std::uint64_t version = 1;

  std::uint64_t of_this = version;
  listed_executor* const* first_executor = &listed_executor::first_;
  std::uint64_t listed_who = offsetof(listed_executor, who_);
  std::uint64_t listed_next = offsetof(listed_executor, next_);
  std::uint64_t executor_roots = offsetof(executor_core, roots_);
  std::uint64_t executor_coarse_now = offsetof(executor_core, time_) + offsetof(coarse_clock, recent_);
  std::uint64_t root_body = offsetof(root_task, body_);
  std::uint64_t root_next = offsetof(root_task, next_);
  std::uint64_t root_observer = offsetof(root_task, observer_);
  std::uint64_t root_name = offsetof(root_task, name_);
  std::uint64_t root_origin = offsetof(root_task, origin_);
  std::uint64_t promise_child = offsetof(promise_base, child_);
  std::uint64_t promise_operation = offsetof(promise_base, operation_);
  std::uint64_t promise_origin = offsetof(promise_base, origin_);
  std::uint64_t operation_since = offsetof(operation_base, since_);
  std::uint64_t scope_owner = offsetof(scope, owner_);
  std::uint64_t scope_name = offsetof(scope, name_);
};
#pragma GCC diagnostic pop
static_assert(sizeof(std::source_location) == sizeof(void*), "weft-gdb.py takes it for a pointer");

}  // namespace weft::detail

// Has C linkage, so that debuggers find it without knowing C++. Every program with an executor has it.
extern "C" {
extern const weft::detail::debugger_layout weft_debugger_layout;
[[gnu::used]] constinit const weft::detail::debugger_layout weft_debugger_layout{};
}
