// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <stop_token>

#include "kit/test.hpp"

namespace weft::test {

/// A thread beside that of a test, which ends on every way out of it: without join(), a stop is requested first. What
/// `body()` or `body(token)` throws fails the test in its words, and what the body owns goes with it, so that who waits
/// for a promise of its learns that it will not be kept.
class other_thread {
 public:
  template <class Body>
  explicit other_thread(Body body)
      : thread_([body = std::move(body)](const std::stop_token& left_early) mutable {
          try {
            if constexpr (std::invocable<Body&, const std::stop_token&>) {
              body(left_early);
            } else {
              body();
            }
          } catch (const std::exception& why) {
            if (!left_early.stop_requested()) ADD_FAILURE() << "on another thread: " << why.what();
          }
        }) {}
  void join() { thread_.join(); }

 private:
  std::jthread thread_;
};

}  // namespace weft::test
