// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/scope.hpp>

namespace weft {

void scope::spawn_as(std::source_location origin, task<> child) {
  check_open();
  const detail::root_handle<void> root(std::move(child));
  root->set_origin(origin);
  start(*root, nullptr);
}

void scope::refuse() const {
  if (ended_) throw error(errc::invalid_argument, "spawn a task in a scope that has ended");
  throw error(errc::wrong_thread, "spawn a task in a scope of another executor");
}

void scope::ended() noexcept {
  if (--running_ == 0 && joining_ != nullptr) home_.ready_next(*std::exchange(joining_, nullptr));
}

void scope::failed(std::exception_ptr failure, const char* task, std::source_location origin) noexcept {
  note_failure(std::move(failure), task, origin);
  ended();
}

void scope::note_failure(std::exception_ptr failure, const char* task, std::source_location origin) noexcept {
  if (stop_.stop_requested() && detail::is_stop(failure)) {  // the child was asked to stop
    if (!first_stopped_) first_stopped_ = std::move(failure);
    return;
  }
  if (policy_ == on_failure::report) return report_failure(failure, task, origin);
  if (!first_failure_) first_failure_ = std::move(failure);
  stop_.request_stop();
}

void scope::report_failure(const std::exception_ptr& failure, const char* task,
                           std::source_location origin) const noexcept {
  const auto tell = [this](const report& text) noexcept {
    listener_ != nullptr ? listener_->handle(text) : send_report(text);
  };
  report what;
  what.kind = report_kind::failure;
  if (task != nullptr) what.task = task;
  what.scope = name_;
  what.origin = origin;
  what.failure = failure;
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& known) {
    what.text = known.what();
    tell(what);
  } catch (...) {
    what.text = "an exception that does not derive from std::exception";
    tell(what);
  }
}

}  // namespace weft
