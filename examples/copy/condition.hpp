// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/sync/event.hpp>
#include <weft/runtime/task.hpp>

namespace copy {

/// Lets tasks of one executor wait until something that they share has come about. `holds` is a named closure: it is
/// called until it says so, each time after notify().
class condition {
 public:
  template <class Predicate>
  [[nodiscard]] weft::task<> until(const Predicate& holds) {
    while (!holds()) {
      changed_.reset();
      co_await changed_.wait();
    }
  }
  void notify() noexcept { changed_.set(); }

 private:
  weft::event changed_;
};

}  // namespace copy
