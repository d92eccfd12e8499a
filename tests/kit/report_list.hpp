// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/runtime/report.hpp>

#include <source_location>

#include "kit/standard.hpp"

namespace weft::test {

/// What is reported while it lives, with copies of what reports refer to.
class report_list final : public report_handler, private immovable {
 public:
  struct item {
    report_kind kind;
    std::string text;
    std::string task;
    std::string scope;
    std::source_location origin;
    std::exception_ptr failure;
    std::optional<weft::stall> stall;
    std::string line;  // to_string()
  };

  report_list() : former_(set_report_handler(this)) {}
  ~report_list() { set_report_handler(former_); }

  [[nodiscard]] std::vector<item> take() const {
    const std::lock_guard lock(mutex_);
    return std::exchange(all_, {});
  }

 private:
  void handle(const report& what) noexcept override {
    const std::lock_guard lock(mutex_);
    all_.push_back({what.kind, std::string(what.text), std::string(what.task), std::string(what.scope), what.origin,
                    what.failure, what.stall, to_string(what)});
  }

  report_handler* former_;
  mutable std::mutex mutex_;
  mutable std::vector<item> all_;
};

}  // namespace weft::test
