// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/task_name.hpp>

#include <string>

namespace weft::detail {

// Without memory for the task's name, the trace leaves the task out.
[[gnu::cold]] void root_task::trace_start(trace_sink& sink) const noexcept {
  try {
    sink.began(trace_track::tasks, this, name_ != nullptr ? std::string(name_) : function_name(origin_));
  } catch (const std::bad_alloc&) {
  }
}

void root_task::request_stop() {
  if (ended()) return;
  if (!home_->on_own_thread()) throw error(errc::wrong_thread, "stop a task of another executor");
  stopped_alone_ = true;
  on_stop();
}

// Stops the body's operation here, because a body that got its token by inherit_stop_token() is in no list of stop_.
void root_task::on_stop() noexcept {
  stop_.request_stop();
  if (body_ == nullptr || !body_->get_stop_token().is_of(stop_)) return;
  if (operation_base* const waited = body_->stoppable()) waited->stop();
}

bool is_stop(const std::exception_ptr& failure) noexcept {
  try {
    std::rethrow_exception(failure);
  } catch (const error& known) {
    return known.code() == errc::canceled;
  } catch (...) {
    return false;
  }
}

namespace {

constinit thread_local int failed_frames = 0;  // frames of failed roots that are being destroyed

}  // namespace

int exceptions_under_way() noexcept { return std::uncaught_exceptions() + failed_frames; }

void root_task::end() noexcept {
  if (trace_sink* const sink = current_trace()) [[unlikely]]
    sink->ended(trace_track::tasks, this);
  if (body_->has_failed()) [[unlikely]]
    return end_with(body_->take_failure());
  root_observer& owner = *observer_;
  if (wanted_) keep_value();
  // The frame is destroyed before leave(): it may hold this task's handle, which would delete a task that has left.
  std::exchange(body_, nullptr)->handle().destroy();
  leave();
  if (!wanted_) {
    delete this;
  } else if (waiter_ != nullptr) {
    waiter_->wake();  // before the owner's ended() may stop the waiter
  }
  owner.ended();
}

[[gnu::cold, gnu::noinline]] void root_task::end_with(std::exception_ptr failure) noexcept {
  root_observer& owner = *observer_;
  const char* const name = name_;
  const std::source_location origin = origin_;
  if (wanted_) keep_failure(failure);
  ++failed_frames;
  std::exchange(body_, nullptr)->handle().destroy();
  --failed_frames;
  leave();
  const bool is_asked_for = stopped_alone_ && is_stop(failure);
  if (!wanted_) {
    delete this;
  } else if (waiter_ != nullptr) {
    waiter_->wake();
  }
  is_asked_for ? owner.ended() : owner.failed(std::move(failure), name, origin);
}

task_names names_of(const promise_base& item) noexcept {
  constexpr int farthest = 64;
  const promise_base* top = &item;
  for (int i = 0; i < farthest && top->parent() != nullptr; ++i) top = top->parent();
  task_names names;
  names.origin = item.origin();
  const root_task* const root = top->root();
  if (root == nullptr || root->observer_ == nullptr) return names;
  names.task = root->name_;
  names.scope = root->observer_->name();
  return names;
}

// Not inlined: before version 19 clang may keep locals of an inlined await_suspend in the frame that is destroyed here.
[[gnu::noinline]] void end_root(root_task& finished) noexcept { finished.end(); }

}  // namespace weft::detail
