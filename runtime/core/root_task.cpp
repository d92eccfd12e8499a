// SPDX-License-Identifier: Apache-2.0
#include <weft/runtime/core/root_task.hpp>
#include <weft/runtime/task_name.hpp>
#include <weft/runtime/trace.hpp>

#include <exception>
#include <string>

namespace weft::detail {

namespace {

// Without memory for its name, the trace leaves it out.
void trace_start(trace_sink& sink, const root_task& root, const char* name) noexcept {
  try {
    sink.began(trace_track::tasks, &root, name != nullptr ? std::string(name) : function_name(root.origin()));
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace

void root_task::start(executor_core& where, root_observer& end, stop_token token, const char* name) noexcept {
  home_ = &where;
  observer_ = &end;
  name_ = name;
  link(where.roots_);
  body_->set_stop_token(token);
  where.counters_.tasks.add(1);
  if (trace_sink* const sink = current_trace()) [[unlikely]]
    trace_start(*sink, *this, name);
  where.ready(*body_);
}

void root_task::request_stop() {
  if (ended()) return;
  if (!home_->on_own_thread()) throw error(errc::wrong_thread, "stop a task of another executor");
  stopped_alone_ = true;
  stop_.request_stop();
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

constinit thread_local int failed_frames = 0;  // being destroyed

[[gnu::cold, gnu::noinline]] void destroy_failed(std::coroutine_handle<> frame) noexcept {
  ++failed_frames;
  frame.destroy();
  --failed_frames;
}

}  // namespace

int exceptions_under_way() noexcept { return std::uncaught_exceptions() + failed_frames; }

void root_task::end() noexcept {
  root_observer* const owner = observer_;
  const char* const name = name_;
  const std::source_location origin = origin_;
  if (trace_sink* const sink = current_trace()) [[unlikely]]
    sink->ended(trace_track::tasks, this);
  std::exception_ptr failure = body_->take_failure();
  const bool has_failed = failure != nullptr;
  if (wanted_) keep_result(failure);
  // The frame is destroyed before we are unlinked: it may hold our handle, and letting that go must not destroy us yet.
  const std::coroutine_handle<> frame = std::exchange(body_, nullptr)->handle();
  has_failed ? destroy_failed(frame) : frame.destroy();
  unlink();
  stop_.unfollow();
  if (stopped_alone_ && failure && is_stop(failure)) failure = nullptr;
  if (!wanted_) {
    delete this;
  } else if (waiter_ != nullptr) {
    waiter_->wake();  // before the owner's ended() may stop the waiter
  }
  owner->ended(std::move(failure), name, origin);
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
