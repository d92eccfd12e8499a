// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/core/executor_core.hpp>
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/system/descriptor.hpp>

#include <cstddef>

namespace weft::net::verbs {

/// A library's descriptor that tells by being readable that there is something to ask the library for. It is watched
/// while it has users, so that an executor without connections and listeners sleeps undisturbed.
class descriptor_watch : private io_operation {
 public:
  /// For the running executor. `fd` stays open and the owner's.
  explicit descriptor_watch(int fd);
  descriptor_watch(const descriptor_watch&) = delete;
  descriptor_watch& operator=(const descriptor_watch&) = delete;

  /// Before enter(), while there is memory: makes what leave() needs. Throws std::bad_alloc.
  void prepare();
  void enter() noexcept;
  /// Outside of a coroutine only while the executor does not run.
  void leave() noexcept;

 protected:
  ~descriptor_watch() { assert(users_ == 0 && "a descriptor was closed while it was watched"); }

 private:
  /// Asks for some of what there is. False if there will never be anything again.
  virtual bool on_readable() noexcept = 0;

  void complete(int result) noexcept override;
  void start_if_used() noexcept;
  [[nodiscard]] task<> wait_until_stopped();

  executor_core& home_;
  descriptor descriptor_;
  std::size_t users_ = 0;
  bool exhausted_ = false;
  event stopped_;
  weft::detail::root_handle<void> stopping_;  // wait_until_stopped(), of those who use it now
};

}  // namespace weft::net::verbs
