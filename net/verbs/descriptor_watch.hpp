// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <cstddef>

namespace weft::net::verbs {

/// Watches a descriptor that is readable when a library has events to report. It watches only while it has users, so
/// that an executor without connections and listeners sleeps undisturbed.
class descriptor_watch : private io_operation {
 public:
  /// Watches on the running executor. `fd` belongs to the caller, who must keep it open.
  explicit descriptor_watch(int fd);
  descriptor_watch(const descriptor_watch&) = delete;
  descriptor_watch& operator=(const descriptor_watch&) = delete;

  /// Allocates what leave() needs; called before each enter(). Throws std::bad_alloc.
  void prepare();
  /// Adds a user.
  void enter() noexcept;
  /// Removes a user; the watch stops with the last. Called from a coroutine, or while the executor does not run.
  void leave() noexcept;

 protected:
  ~descriptor_watch() { assert(users_ == 0 && "a descriptor was closed while it was watched"); }

 private:
  /// Takes some of the pending events. Returns false if no other event will ever come.
  virtual bool on_readable() noexcept = 0;

  void complete(int result) noexcept override;
  void start_if_used() noexcept;
  task<> wait_until_stopped();

  executor_core& home_;
  descriptor descriptor_;
  std::size_t users_ = 0;
  bool exhausted_ = false;
  event stopped_;
  weft::detail::root_handle<void> stopping_;  // wait_until_stopped(), for the last of the current users
};

}  // namespace weft::net::verbs
