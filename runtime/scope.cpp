// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/scope.hpp>

#include <cstdio>

namespace weft {
namespace {

bool is_stop(const std::exception_ptr& failure) noexcept {
  try {
    std::rethrow_exception(failure);
  } catch (const error& known) {
    return known.code() == errc::canceled;
  } catch (...) {
    return false;
  }
}

void describe(const std::exception_ptr& failure) noexcept {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& known) {
    std::fprintf(stderr, "weft: a task failed: %s\n", known.what());
  } catch (...) {
    std::fputs("weft: a task failed with an exception that is no std::exception\n", stderr);
  }
}

}  // namespace

void scope::spawn_as(std::source_location origin, task<> child) {
  check_thread();
  const detail::root_handle<void> root(std::move(child));
  root->set_origin(origin);
  start(*root, nullptr);
}

void scope::check_thread() const {
  if (!home_.on_own_thread()) throw error(errc::wrong_thread, "spawn a task in a scope of another executor");
}

void scope::start(detail::root_task& root, const char* name) noexcept {
  ++running_;
  root.start(home_, *this, stop_.get_token(), name);
}

void scope::ended(std::exception_ptr failure) noexcept {
  if (failure) note_failure(std::move(failure));
  if (--running_ == 0 && joining_ != nullptr) home_.ready_next(*std::exchange(joining_, nullptr));
}

void scope::note_failure(std::exception_ptr failure) noexcept {
  if (stop_.stop_requested() && is_stop(failure)) {  // it was told to
    if (!first_stopped_) first_stopped_ = std::move(failure);
    return;
  }
  if (policy_ == on_failure::report) return describe(failure);
  if (!first_failure_) first_failure_ = std::move(failure);
  stop_.request_stop();
}

}  // namespace weft
