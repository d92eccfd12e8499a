// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "test.hpp"

namespace perf {

/// A bar on the standard error stream that shows how a test gets on, where that is a terminal; else nothing.
class progress final : public watcher {
 public:
  progress();
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() { erase(); }  // what was left standing must not run into an error message

  /// What is measured next: "write latency 64".
  void begin(const test& next);
  void done(double part) override;
  void erase();

 private:
  std::string name_;
  bool terminal_;
  bool visible_ = false;
};

}  // namespace perf
